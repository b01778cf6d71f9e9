"""Where the health server listens, as a user writes it. Pure."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.wire.address import Endpoint, parse_endpoint

#: TorchElastic's variable; it takes what `--health-port` takes.
PORT_VARIABLE = "TORCHELASTIC_HEALTH_CHECK_PORT"
#: Only this machine can reach it unless somebody says otherwise.
HOST_DEFAULT = "127.0.0.1"


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
