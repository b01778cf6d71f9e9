"""Endpoints as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.wire.address import DEFAULT_PORT, Endpoint, is_loopback, parse_endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Endpoint("localhost", DEFAULT_PORT)),
        ("host", Endpoint("host", DEFAULT_PORT)),
        ("host:1", Endpoint("host", 1)),
        (" host:1 ", Endpoint("host", 1)),
        ("host:", Endpoint("host", DEFAULT_PORT)),
        ("host:0", Endpoint("host", 0)),
        ("10.1.2.3:65535", Endpoint("10.1.2.3", 65535)),
        ("[::1]:29500", Endpoint("::1", 29500)),
        ("[fe80::1%eth0]:5", Endpoint("fe80::1%eth0", 5)),
        ("[::1]", Endpoint("::1", DEFAULT_PORT)),
        ("::1", Endpoint("::1", DEFAULT_PORT)),
        ("2001:db8::7", Endpoint("2001:db8::7", DEFAULT_PORT)),
    ],
)
def test_every_way_to_write_an_endpoint(text, expected):
    assert parse_endpoint(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "host:port",
        "host:-1",
        "host:65536",
        "host:1:2",
        ":29400",
        "[::1",
        "[::1]29400",
        "[]:1",
        "http://host:1",
        "a b:1",
        "user@host:1",
        "host:٣",
        "[host]:1:2",
    ],
)
def test_what_is_no_endpoint_is_refused_by_name(text):
    with pytest.raises(UsageError, match="is not an endpoint") as error:
        parse_endpoint(text)

    assert repr(text.strip())[1:-1] in str(error.value)


@given(
    st.one_of(st.ip_addresses().map(str), st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)),
    st.integers(0, 65535),
)
def test_an_endpoint_comes_back_from_its_own_text(host, port):
    endpoint = Endpoint(host, port)

    assert parse_endpoint(str(endpoint)) == endpoint


@given(st.text(max_size=40))
def test_any_text_is_an_endpoint_or_the_callers_mistake(text):
    try:
        endpoint = parse_endpoint(text)
    except UsageError:
        return

    assert endpoint.host
    assert 0 <= endpoint.port <= 65535


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("::", False),
        ("0.0.0.0", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host, expected):
    assert is_loopback(host) is expected
    assert Endpoint(host, 1).is_loopback is expected
