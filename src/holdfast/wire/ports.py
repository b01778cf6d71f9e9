"""A port held for another program: the kernel gives it to no one by chance, and that program can still listen on it."""

from __future__ import annotations

import socket


class HeldPort:
    """A TCP port of this host, free or the one that is asked for, kept from being given out by chance until `close`.

    The socket is bound on every interface and never listens. The kernel does not choose the port for another program
    and refuses a plain bind to it. A program that asks for this very port with SO_REUSEADDR, as torch's TCPStore does,
    may listen on it, and that is any program of any user of this host: Linux compares users only for SO_REUSEPORT,
    which TCPStore does not set. So this prevents accidents, not attacks, and the program that the port is meant for
    must be ready to find it taken. Workers are: their round fails, and the next round has another port.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port."""
        self._socket.close()


def _bind(port: int) -> socket.socket:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a host without this family
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
        except OSError:
            sock.close()
            if family == socket.AF_INET:
                raise
            continue
        return sock
    raise OSError("this host has neither IPv4 nor IPv6")


def get_socket_with_port() -> socket.socket:
    """Return a socket that listens on a free port of this host; it is the caller's to close."""
    for family, kind, protocol, _, _ in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.bind(("localhost", 0))
            sock.listen(0)
        except OSError:
            sock.close()
        else:
            return sock
    raise RuntimeError("Failed to create a socket")


def get_free_port() -> int:
    """Return a port that was free a moment ago; hold it with `HeldPort` where that is not enough."""
    with get_socket_with_port() as sock:
        port: int = sock.getsockname()[1]
        return port
