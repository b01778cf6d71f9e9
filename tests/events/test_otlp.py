"""Events reach a real receiver of OpenTelemetry logs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest

from holdfast import events
from holdfast.events import Event, EventSource
from holdfast.facts import Fact

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP collector that keeps what it is sent."""

    daemon_threads = True

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.status = status
        self.requests: Queue[tuple[str, ExportLogsServiceRequest]] = Queue()
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        request = ExportLogsServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.put((self.path, request))
        body = ExportLogsServiceResponse().SerializeToString()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    events.close_all()
    made.stop()


def values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def test_an_event_arrives_as_a_log_record_with_its_name_time_and_metadata(collector: Collector) -> None:
    metadata = {
        "run_id": "job",
        "rank": 3,
        "share": 0.5,
        "ok": True,
        "none": None,
        "level": "warning",
        "sentence": "so",
    }

    events.record(Event("holdfast.hang", EventSource.WORKER, 1700000000.25, metadata), f"otlp:{collector.endpoint}")

    path, request = collector.requests.get(timeout=240)
    (resource,) = request.resource_logs
    (scope,) = resource.scope_logs
    (record,) = scope.log_records
    assert path == "/v1/logs"
    assert values(resource.resource.attributes)["service.name"] == "holdfast"
    assert scope.scope.name == "holdfast.events"
    assert (record.event_name, record.body.string_value) == ("holdfast.hang", "so")
    assert record.time_unix_nano == 1700000000250000000
    assert (record.severity_text, record.severity_number) == ("WARNING", 13)
    assert values(record.attributes) == {
        "run_id": "job",
        "rank": 3,
        "share": 0.5,
        "ok": True,
        "level": "warning",
        "sentence": "so",
        "event.source": "WORKER",
    }


def test_every_event_that_was_recorded_is_sent_before_the_end(collector: Collector) -> None:
    for number in range(20):
        events.record(Event(f"n{number}", EventSource.AGENT), f"otlp:127.0.0.1:{collector.server_port}")
    events.close_all(timeout=60)

    got = [collector.requests.get_nowait()[1].resource_logs[0].scope_logs[0].log_records[0] for _ in range(20)]
    assert [record.event_name for record in got] == [f"n{number}" for number in range(20)]
    assert all(record.time_unix_nano for record in got)


def test_a_collector_that_refuses_is_reported_once(collector: Collector, heard: list[Fact]) -> None:
    collector.status = 400

    for _ in range(3):
        events.record(Event("n", EventSource.AGENT), f"otlp:{collector.endpoint}")
    events.close_all(timeout=60)

    (fact,) = heard
    assert f"the collector at {collector.endpoint}/v1/logs does not take events" in fact.sentence
