"""StatsD: datagrams that a real socket receives."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator

import pytest

from holdfast import metrics
from holdfast.errors import UnavailableError, UsageError
from holdfast.metrics.api import MetricData
from holdfast.metrics.chosen import configure_from
from holdfast.metrics.sinks.statsd import StatsdMetricHandler, create_handler, datagram_of
from holdfast.wire.address import Endpoint
from tests.metrics.conftest import PATIENCE_S


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(PATIENCE_S)
        yield made


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("loss", 0.25, "my_app.loss:0.25|g"),
        ("step", 7, "my_app.step:7|g"),
        ("loss", -1.5, "my_app.loss:0|g\nmy_app.loss:-1.5|g"),
        ("step.duration.ms", 12, "my_app.step.duration.ms:12|ms"),
        ("big", 123456789012, "my_app.big:123456789012|g"),
        ("a:b|c", 1, "my_app.a_b_c:1|g"),
    ],
)
def test_a_value_becomes_a_gauge_and_a_duration_a_timer(name: str, value: float, text: str) -> None:
    assert datagram_of(MetricData(1.0, "my_app", name, value)) == text.encode()


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot represent nan"):
        datagram_of(MetricData(1.0, "g", "loss", math.nan))


def test_values_arrive_over_udp(server: socket.socket) -> None:
    chosen = configure_from([f"statsd:127.0.0.1:{server.getsockname()[1]}"])
    metrics.getStream("my_app").add_value("loss", 0.5)
    metrics.put_metric("rendezvous.duration_ms", 42)

    assert server.recv(1000) == b"my_app.loss:0.5|g"
    assert server.recv(1000) == b"torchelastic.rendezvous.duration_ms:42|ms"
    chosen.close(PATIENCE_S)


def test_a_host_without_a_listener_costs_only_the_values(server: socket.socket) -> None:
    port = server.getsockname()[1]
    server.close()
    handler = StatsdMetricHandler(Endpoint("127.0.0.1", port))
    for number in range(10):
        handler.emit(MetricData(1.0, "g", "x", number))

    assert handler.lost > 0
    handler.close()


def test_a_name_that_cannot_be_resolved_is_told_and_not_asked_for_again_at_once() -> None:
    handler = StatsdMetricHandler(Endpoint("no-such-host.invalid", 8125))
    with pytest.raises(UnavailableError, match=r"'no-such-host.invalid' cannot be resolved"):
        handler.emit(MetricData(1.0, "g", "x", 1))
    handler.emit(MetricData(1.0, "g", "x", 2))

    assert handler.lost == 1
    handler.close()


def test_the_port_has_a_default_and_must_be_one() -> None:
    assert create_handler("stats.example")._endpoint == Endpoint("stats.example", 8125)
    with pytest.raises(UsageError, match="port must be a number"):
        create_handler("stats.example:many")
