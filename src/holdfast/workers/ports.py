"""Held ports: a port that nobody else can take until the workers have it."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from holdfast.errors import Unavailable

if TYPE_CHECKING:
    from types import TracebackType


class HeldPort:
    """A TCP port kept for the round's master.

    The socket is bound with SO_REUSEADDR and never listens: the kernel hands the port to nobody and refuses a
    plain bind, while a server that itself binds with SO_REUSEADDR, as torch's TCPStore does, can listen on
    it. Close it once the workers have theirs, or keep it for the whole round: it takes no connections.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.port: int = sock.getsockname()[1]

    def close(self) -> None:
        """Let the port go; a server that listens on it stays as it is."""
        self._socket.close()

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def hold_port(host: str = "", port: int = 0) -> HeldPort:
    """Hold a free port (or the given one) on all addresses of this machine, or on those of `host`."""
    reasons: list[str] = []
    for family, address in _addresses(host):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # A socket for both families, so that the port is held in both.
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((address, port))
        except OSError as error:
            sock.close()
            reasons.append(f"{address}: {error.strerror}")
            continue
        return HeldPort(sock)
    raise Unavailable(f"no port {port or ''} can be held on {host or 'this machine'} ({'; '.join(reasons)})")


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if not host:
        every = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
        return every if socket.has_ipv6 else every[1:]
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(f"{host} is not known here: {error}") from error
    return [(family, str(address[0])) for family, _, _, _, address in found]
