"""Endpoints: where a coordinator listens, as text and as data. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from holdfast.errors import UsageError

#: torchrun's port for c10d, so that its command lines mean the same here.
DEFAULT_PORT = 29400


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host (name or address, IPv6 without brackets) and a port; port 0 asks for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def parse_endpoint(text: str, default_port: int = DEFAULT_PORT) -> Endpoint:
    """Read `host`, `host:port`, `[v6]:port` or `v6`; the empty text means localhost with the default port."""
    text = text.strip()
    if not text:
        return Endpoint("localhost", default_port)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"'{text}' is not an endpoint: write an IPv6 address as [address]:port")
        return Endpoint(_host(host, text), _port(rest[1:], text, default_port))
    if text.count(":") > 1:
        return Endpoint(_host(text, text), default_port)
    host, _, port = text.partition(":")
    return Endpoint(_host(host, text), _port(port, text, default_port))


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _host(host: str, text: str) -> str:
    if not host or any(character.isspace() or character in "/@" for character in host):
        raise UsageError(f"'{text}' is not an endpoint: it needs a host name or address, as in host:29400")
    if ":" in host:
        try:
            ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            raise UsageError(f"'{text}' is not an endpoint: write host:port, or [IPv6 address]:port") from None
    return host


def _port(port: str, text: str, default_port: int) -> int:
    if not port:
        return default_port
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"'{text}' is not an endpoint: the port must be a number from 0 to 65535")
    return int(port)
