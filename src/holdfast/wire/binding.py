"""Sockets that listen: every address that a host name means, all on one port."""

from __future__ import annotations

import errno
import socket

from holdfast.errors import UsageError
from holdfast.wire.address import Endpoint
from holdfast.wire.forks import keep_from_children

#: How many connections may wait to be accepted: all nodes of a large job come at once.
BACKLOG = 4096


def listen(endpoint: Endpoint) -> list[socket.socket]:
    """Listen on every address that the host name means, all on one port; the empty name means every interface.

    Of several processes that want the same port at the same moment all can bind it, and the first to listen has it;
    the others get `OSError` here.
    """
    sockets: list[socket.socket] = []
    try:
        _bind(endpoint, sockets)
        for sock in sockets:
            keep_from_children(sock).listen(BACKLOG)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind(endpoint: Endpoint, sockets: list[socket.socket]) -> None:
    """Bind the addresses that this host has; one on which another process listens is an error."""
    try:
        found = socket.getaddrinfo(
            endpoint.host or None, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise UsageError(f"cannot listen on {endpoint}: {error.strerror}; name an address of this machine") from None
    refused: OSError | None = None
    port = endpoint.port
    for family, kind, protocol, _, address in dict.fromkeys(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE and endpoint.port:
                raise
            refused = error
            continue
        port = sock.getsockname()[1]  # the second address of a name takes the first one's port
        sockets.append(sock)
    if not sockets:
        assert refused is not None
        raise refused
