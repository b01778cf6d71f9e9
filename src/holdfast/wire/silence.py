"""Connections to a host that is gone: the kernel ends them soon, not after a quarter of an hour.

Beats and leases notice a silent host first. This is for what they do not watch: a question to the store, a blocking
connection without a deadline, the far end of a connection whose owner has given it up.
"""

from __future__ import annotations

import contextlib
import socket
import struct

#: How long what was sent may stay unacknowledged. A few leases: a link that is only slow outlives it.
UNACKNOWLEDGED_S = 30.0
#: An idle connection is probed after so long, and again every few seconds; the limit above ends it.
IDLE_S, PROBE_S, PROBES = 10, 5, 5
#: The longest pause of the kernel before it sends a packet again, where it can be told (Linux 6.15).
AGAIN_S = 1.0
#: Linux's numbers of these options; Python has no names for them.
_TCP_THIN_LINEAR_TIMEOUTS, _TCP_RTO_MAX_MS = 16, 44


def end_when_unacknowledged(transport: object) -> None:
    """Have the kernel end an event loop's connection whose other host does not acknowledge what is sent to it."""
    sock = transport.get_extra_info("socket")  # type: ignore[attr-defined]
    if sock is not None:
        watch_silence(sock)


def watch_silence(sock: socket.socket) -> None:
    """Have the kernel end a connection whose other host is silent, idle or not, and send small messages again soon.

    The kernel doubles its pause each time that it sends a packet again: after a link was down for two seconds, the next
    try may be a second and a half away, after three seconds three.
    """
    with contextlib.suppress(OSError):  # not TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_S * 1000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_THIN_LINEAR_TIMEOUTS, 1)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, int(AGAIN_S * 1000))


def forget_silently(transport: object) -> None:
    """Let the end of a connection be said at most once, to a host that may not hear it.

    The kernel repeats a polite end until it is acknowledged. It would arrive when the link is back, and look as if the
    process at this end had just died.
    """
    sock = transport.get_extra_info("socket")  # type: ignore[attr-defined]
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
