"""The listening socket, bound by the agent itself, so that what is wrong with a port is told at once."""

from __future__ import annotations

import errno
import socket

from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.wire.address import Endpoint

BACKLOG = 512
_HINT = "choose another one, or 0 for any that is free"


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen; raises `UnavailableError` for a taken port and `UsageError` for one that can never be had."""
    where = Endpoint(host, port)
    try:
        # A name with addresses of both kinds is served by the first that can be bound, IPv4 before IPv6.
        found = sorted(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE),
            key=lambda each: each[0] != socket.AF_INET,
        )
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise UsageError(f"the health server cannot listen on {where}: {error}; name an address of this host") from None
    problem: OSError | None = None
    for family, _, _, _, address in found:
        try:
            return _bind(family, address)
        except OSError as error:
            problem = problem or error
    raise _explain(where, problem) from problem


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a predecessor may linger
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # [::] means every address
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _explain(where: Endpoint, problem: OSError | None) -> HoldfastError:
    code = problem.errno if problem is not None else None
    if code == errno.EADDRINUSE:
        return UnavailableError(f"health port {where.port} on {where.host} is taken by another process; {_HINT}")
    if code in (errno.EACCES, errno.EPERM):
        return UsageError(f"health port {where.port} on {where.host} needs rights that this user has not; {_HINT}")
    if code == errno.EADDRNOTAVAIL:
        return UsageError(f"the health server cannot listen on {where}: {where.host} is no address of this host")
    return UnavailableError(f"the health server cannot listen on {where}: {problem}")
