"""Connections to a host that is gone: the kernel ends them soon, not after a quarter of an hour."""

from __future__ import annotations

import contextlib
import socket

#: How long what was sent may stay unacknowledged. A few leases: a link that is only slow outlives it.
UNACKNOWLEDGED_S = 30.0


def end_when_unacknowledged(transport: object) -> None:
    """Have the kernel end an event loop's connection whose other host does not acknowledge what is sent to it."""
    sock = transport.get_extra_info("socket")  # type: ignore[attr-defined]
    if sock is not None:
        with contextlib.suppress(OSError):  # not TCP
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000))
