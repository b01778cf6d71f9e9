"""Where the health server listens, as a user writes it."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.health import parse_health_port


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8080", "127.0.0.1", 8080),
        (" 0 ", "127.0.0.1", 0),
        ("0.0.0.0:8080", "0.0.0.0", 8080),
        ("localhost:0", "localhost", 0),
        ("[::1]:8080", "::1", 8080),
        ("[::]:8080", "::", 8080),
    ],
)
def test_a_port_alone_means_loopback(text: str, host: str, port: int) -> None:
    endpoint = parse_health_port(text)

    assert (endpoint.host, endpoint.port) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "http", "-1", "65536", "host:", "host", ":80", "::1", "1.5", "a b:80", "http://x:1"]
)
def test_what_is_no_port_is_refused_with_the_name_of_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"--health-port.*must be a port"):
        parse_health_port(text)


def test_the_refusal_names_the_variable_where_the_port_came_from_there() -> None:
    with pytest.raises(UsageError, match="TORCHELASTIC_HEALTH_CHECK_PORT 'x'"):
        parse_health_port("x", "TORCHELASTIC_HEALTH_CHECK_PORT")
