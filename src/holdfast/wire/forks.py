"""Connections that are this process's alone: a forked child closes its copies.

A child that outlives its parent, as a data loader's worker may, would otherwise keep the connections of the dead parent
open: its peers would not notice its death, and its port would stay taken.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_descriptors: set[int] = set()


def keep_from_children(sock: socket.socket) -> socket.socket:
    """Make forked children close their copy of a socket; return it."""
    _sockets.add(sock)
    return sock


def keep_transport(transport: object) -> int:
    """Make forked children close their copy of a connection, until `let_go`; return the argument for it."""
    sock = transport.get_extra_info("socket")  # type: ignore[attr-defined]
    descriptor = -1 if sock is None else int(sock.fileno())
    if descriptor >= 0:
        _descriptors.add(descriptor)
    return descriptor


def keep_descriptor(descriptor: int) -> int:
    """Make forked children close their copy of a descriptor, until `let_go`; return it."""
    _descriptors.add(descriptor)
    return descriptor


def let_go(descriptor: int) -> None:
    """Forget a connection that is about to be closed: its number may soon be reused."""
    _descriptors.discard(descriptor)


def _after_fork() -> None:
    descriptors = [*_descriptors]
    # Detached, a socket is closed here once and for all, even where an event loop holds on to it.
    descriptors += [sock.detach() for sock in list(_sockets) if sock.fileno() >= 0]
    _descriptors.clear()
    _sockets.clear()
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


os.register_at_fork(after_in_child=_after_fork)
