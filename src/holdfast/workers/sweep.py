"""The sweep: finds, kills and reaps processes that a gang's workers leave behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING

from holdfast.workers import strays
from holdfast.workers.family import family
from holdfast.workers.linux import open_pidfd

if TYPE_CHECKING:
    from collections.abc import Iterable


class Sweeper:
    """Finds one gang's strays and ends them; their ends show on the gang's own epoll."""

    def __init__(self, token: str, epoll: select.epoll) -> None:
        self._token = token
        self._epoll = epoll
        self._pending: set[int] = set()  # pidfds of strays that we have killed and that are not gone yet
        self._met: dict[int, int] = {}  # all strays so far, pid -> start: a dead one shows no token any more

    def __contains__(self, fd: object) -> bool:
        return fd in self._pending

    @property
    def busy(self) -> bool:
        """Whether killed strays have not ended yet."""
        return bool(self._pending)

    def meet(self, workers: Iterable[int]) -> list[strays.Stat]:
        """Find the descendants of these workers, to recognise them later; return them."""
        found = strays.find_strays(os.getpid(), workers, family().pids(), self._token)
        self._met.update((stat.pid, stat.start) for stat in found)
        return found

    def kill(self, workers: Iterable[int]) -> None:
        """Kill every stray that lives; `busy` says whether there is something to wait for."""
        for stat in self.meet(workers):
            if stat.state in "ZX":
                continue
            try:
                fd = open_pidfd(stat.pid)
            except OSError:
                continue
            signal_process(stat, signal.SIGKILL)
            self._pending.add(fd)
            self._epoll.register(fd, select.EPOLLIN)
        if not self._pending:
            self._reap()

    def note_end(self, fd: int) -> None:
        """A killed stray has ended."""
        self._pending.discard(fd)
        self._epoll.unregister(fd)
        os.close(fd)

    def _reap(self) -> None:
        """Wait for the dead among the strays that became our children, and for no others."""
        for pid, start in self._met.items():
            stat = strays.read_stat(pid)
            if stat is not None and (stat.start, stat.ppid) == (start, os.getpid()):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Give up on those that could not be ended."""
        for fd in tuple(self._pending):
            self.note_end(fd)


def signal_group(pid: int, number: int) -> None:
    """Signal a worker's process group; the worker alone if it has not made its group yet."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    except PermissionError:
        pass  # what is left of the group runs as another user


def signal_process(stat: strays.Stat, number: int) -> None:
    """Signal exactly this process: not one that has got its pid meanwhile."""
    with contextlib.suppress(OSError):
        fd = open_pidfd(stat.pid)
        try:
            current = strays.read_stat(stat.pid)
            if current is not None and current.start == stat.start:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def signal_tree(pid: int, number: int) -> None:
    """Signal a worker, its group, and all below it that has left the group."""
    below = [stat for stat in map(strays.read_stat, strays.descendants(pid)) if stat is not None]
    signal_group(pid, number)
    for stat in below:
        if stat.session != pid:
            signal_process(stat, number)
    if number != signal.SIGKILL:
        signal_group(pid, signal.SIGCONT)  # a stopped process would not receive the first one
