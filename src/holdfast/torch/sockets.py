"""The connections that gloo and NCCL hold in this process, and how to end them.

gloo cannot stop waiting for a peer: its `abort` does nothing, and a collective with a frozen peer waits for
the group's timeout. But a connection that is shut down, from any thread, fails the collective at once. gloo serves its
connections from an epoll instance of its own, and the kernel lists what is registered there. So nothing has to be
guessed: connections made later are found too, and no others are touched. Where the kernel does not tell (gVisor),
they are those that appeared while the group was made.

NCCL can be told to stop, but not while a communicator is being made: torch then waits for it behind the lock that an
abort needs. A peer that has died may never have connected, so no connection of its breaks either. The sockets that
NCCL has opened meanwhile are ended instead, those it listens on too, and the communicator fails at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.threads import start_thread

#: How long NCCL has to notice that its sockets are gone, before it is looked whether it has opened others.
AGAIN_S = 0.02
_FDS = Path("/proc/self/fd")
_FACTS = Path("/proc/self/fdinfo")
_WATCHED = re.compile(r"tfd:\s*(\d+)\s.*\bino:([0-9a-f]+)")


class GlooSockets:
    """The connections of the groups that were made inside `watching`."""

    def __init__(self) -> None:
        self._loops: set[int] = set()
        #: Descriptors with what they stood for, where no loop could be read.
        self._found: set[tuple[int, int]] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Remember the gloo groups that are made meanwhile."""
        loops, sockets = _descriptors("eventpoll"), _descriptors("socket:")
        try:
            yield
        finally:
            made = {fd for fd, _ in _descriptors("eventpoll") - loops if _has_listener(fd)}
            self._loops |= made
            if not made:
                self._found |= _descriptors("socket:") - sockets

    def shut_down(self) -> int:
        """End every connection, which ends all waits for it; return how many there were."""
        return sum(_shut(sock) for sock in _sockets(self._watched()))

    def forget(self) -> None:
        """Forget everything without sending; the groups are being destroyed."""
        self._loops.clear()
        self._found.clear()

    def close_in_child(self) -> None:
        """In a forked child: close its copies, which would keep the connections of a dead parent open."""
        watched = self._watched()  # a loop tells only while it is open
        for fd in self._loops:
            with contextlib.suppress(OSError):
                os.close(fd)
        for fd, inode in watched:
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_ino == inode:  # the number may have been given to another file since
                    os.close(fd)
        self.forget()

    def _watched(self) -> set[tuple[int, int]]:
        return self._found.union(*(_registered(loop) for loop in self._loops))


class NcclSockets:
    """The sockets that a communicator of NCCL opens while it is made.

    They are those that this process has opened since. A connection of our own that is opened in the same moments is
    ended with them, and made again by its owner as after any fault of the network.
    """

    def __init__(self) -> None:
        self._before = _descriptors("socket:")
        self._done = threading.Event()

    def end(self) -> None:
        """End them until `close` is called: NCCL may just be opening the next one. Returns at once."""
        start_thread(self._end, "nccl-sockets")

    def close(self) -> None:
        """The communicator is made, or it has failed."""
        self._done.set()

    def _end(self) -> None:
        while True:
            for sock in _sockets(_descriptors("socket:") - self._before):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            if self._done.wait(AGAIN_S):
                return


def _descriptors(kind: str) -> set[tuple[int, int]]:
    """Return the descriptors of this process that stand for something of a kind, each with its inode."""
    found = set()
    for entry in _FDS.iterdir() if _FDS.exists() else ():
        with contextlib.suppress(OSError):
            if kind in str(entry.readlink()):
                found.add((int(entry.name), entry.stat().st_ino))
    return found


def _registered(loop: int) -> set[tuple[int, int]]:
    """Return what an epoll instance watches: descriptors, and what they stood for when they were registered."""
    found = set()
    with contextlib.suppress(OSError):
        for line in (_FACTS / str(loop)).read_text().splitlines():
            if match := _WATCHED.match(line):
                found.add((int(match[1]), int(match[2], 16)))
    return found


def _sockets(descriptors: Iterable[tuple[int, int]]) -> Iterator[socket.socket]:
    """Yield the TCP sockets among them, each as a duplicate that the caller may use until the next one."""
    for fd, inode in descriptors:
        try:
            copy = os.dup(fd)
        except OSError:
            continue
        # The number may have been given to another file since.
        if os.fstat(copy).st_ino != inode:
            os.close(copy)
            continue
        try:
            sock = socket.socket(fileno=copy)
        except OSError:  # not a socket, but the descriptor that wakes the loop
            os.close(copy)
            continue
        with sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                yield sock


def _has_listener(loop: int) -> bool:
    return any(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for sock in _sockets(_registered(loop)))


def _shut(sock: socket.socket) -> bool:
    """Shut a connection down; a listener is left alone, for gloo would end the process with it."""
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True
