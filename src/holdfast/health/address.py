"""Where the health server listens, and the host names that it answers.

A web page can make its own name resolve to a private address and then read the answers from there: DNS rebinding. The
browser still sends that page's name as the host, so a server that answers only to its own names is safe. An address in
place of a name was not resolved by anything, so every address is answered.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.wire.address import Endpoint, parse_endpoint

#: TorchElastic's variable; it takes the same values as `--health-port`.
PORT_VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
#: By default only this machine can reach it.
HOST_DEFAULT = "127.0.0.1"
#: Further host names, separated by commas; `*` stands for all.
HOSTS_VARIABLE = "HOLDFAST_HEALTH_HOSTS"
BACKLOG = 512
_HINT = "choose another one, or 0 for any that is free"
_HOSTS_FILE, _RESOLVER_FILE = Path("/etc/hosts"), Path("/etc/resolv.conf")


def parse_health_port(text: str, source: str = "--health-port") -> Endpoint:
    """Read `PORT`, `HOST:PORT` or `[IPv6]:PORT`; a port alone means loopback, and port 0 any free port."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        text = f"{HOST_DEFAULT}:{text}"
    try:
        endpoint = parse_endpoint(text, default_port=-1)
    except UsageError:
        endpoint = None
    if endpoint is None or endpoint.port < 0:
        raise UsageError(f"{source} '{text}' must be a port from 0 to 65535 or HOST:PORT, as in 8080 or 0.0.0.0:8080")
    return endpoint


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen; raises `UnavailableError` for a port in use, `UsageError` for one that can never be bound.

    The agent does this itself, so that a wrong port is reported at once.
    """
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
        return UsageError(
            f"health port {where.port} on {where.host} needs permissions that this user does not have; {_HINT}"
        )
    if code == errno.EADDRNOTAVAIL:
        return UsageError(f"the health server cannot listen on {where}: {where.host} is not an address of this host")
    return UnavailableError(f"the health server cannot listen on {where}: {problem}")


def known_names(bound: str, more: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of this host, those that /etc lists for it, and those that the user adds.

    No name server is asked: it may be slow, and an attacker may control its answers.
    """
    own = {socket.gethostname().lower(), os.uname().nodename.lower()} - {""}
    names = {"localhost", bound.lower(), *own}
    for line in _lines(_HOSTS_FILE):
        listed = {name.lower() for name in line[1:]}
        if listed & own:
            names |= listed
    for line in _lines(_RESOLVER_FILE):
        if line[0] in ("search", "domain"):
            names |= {f"{name}.{domain.strip('.').lower()}" for name in own for domain in line[1:]}
    names |= {name.strip().lower() for name in (*more, *environ.get(HOSTS_VARIABLE, "").split(","))}
    return sorted(name.rstrip(".") for name in names if name)


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return [words for line in text.splitlines() if (words := line.partition("#")[0].split())]
