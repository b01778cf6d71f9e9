"""Every metric sink does what the contract says."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import plugins
from holdfast.metrics import MetricHandler
from holdfast.testing.metric_contract import Case, metric_cases
from tests.metrics.conftest import Receiver

SINKS = [each.name for each in plugins.find("holdfast.metrics")]


class Bench:
    """One sink, and what has arrived where it leads."""

    def __init__(self, name: str, argument: str = "") -> None:
        self._create = next(each for each in plugins.find("holdfast.metrics") if each.name == name).load()
        self._argument = argument
        self.made: list[Any] = []

    def make(self) -> MetricHandler:
        self.made.append(self._create(self._argument))
        handler: MetricHandler = self.made[-1]
        return handler


@pytest.fixture(params=SINKS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[Bench, Any]]:
    """A sink of ours by its entry point, with the function that reads back what it has delivered."""
    match request.param:
        case "console":
            yield Bench("console"), lambda: _printed(capsys.readouterr().out)
        case "jsonl":
            path = tmp_path / "metrics.jsonl"
            yield Bench("jsonl", str(path)), lambda: _lines(path)
        case "statsd":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                udp.bind(("127.0.0.1", 0))
                udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                udp.setblocking(False)
                yield Bench("statsd", f"127.0.0.1:{udp.getsockname()[1]}"), lambda: _datagrams(udp)
        case "prometheus":
            pytest.importorskip("prometheus_client", reason="needs prometheus-client")
            prometheus = Bench("prometheus")
            yield prometheus, lambda: _scraped(prometheus.made[-1].registry)
        case "otlp":
            pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs opentelemetry")
            receiver = Receiver()
            yield Bench("otlp", receiver.address), lambda: _exported(receiver.posted)
            receiver.close()
        case "null":
            yield Bench("null"), None
        case name:
            raise AssertionError(f"say here how values of the sink {name} are read back")


@pytest.mark.parametrize("case", metric_cases(), ids=lambda case: case.__name__)
def test_contract(case: Case, bench: tuple[Bench, Any]) -> None:
    sink, received = bench

    case(sink.make, received)


def _printed(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\[my_app\]: loss=(.*)", text)]


def _lines(path: Path) -> list[float]:
    entries = map(json.loads, path.read_text().splitlines())
    return [entry["value"] for entry in entries if entry["name"] == "loss"]


def _datagrams(udp: socket.socket) -> list[float]:
    values = []
    while True:
        try:
            datagram = udp.recv(65536).decode()
        except BlockingIOError:
            return values
        # A negative gauge is set to zero first; only the last line of a datagram is a value.
        if found := re.search(r"^my_app\.loss:(.*)\|g$", datagram.splitlines()[-1]):
            values.append(float(found[1]))


def _scraped(registry: Any) -> list[float]:
    return [
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "holdfast_loss" and sample.labels["group"] == "my_app"
    ]


def _exported(posted: list[tuple[str, bytes]]) -> list[float]:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    _, body = posted[-1]
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    return [
        float(point.as_double or point.as_int)
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "loss"
        for point in metric.gauge.data_points
    ]
