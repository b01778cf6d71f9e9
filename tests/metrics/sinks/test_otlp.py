"""OpenTelemetry: what a real receiver reads from what the official SDK sends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import metrics
from holdfast.facts import Fact
from holdfast.metrics.chosen import configure_from
from holdfast.metrics.sinks.otlp import resource_of
from holdfast.metrics.source import Source
from tests.metrics.conftest import PATIENCE_S, Receiver

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs opentelemetry")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


def read(receiver: Receiver) -> tuple[dict[str, object], dict[str, object]]:
    """Return the resource and the metrics, by name, of the last request."""
    path, body = receiver.posted[-1]
    assert path == "/v1/metrics"
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    attributes = {
        each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in resource.resource.attributes
    }
    return attributes, {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


def test_gauges_and_histograms_arrive_with_their_source(receiver: Receiver) -> None:
    chosen = configure_from([f"otlp:{receiver.address}"], run_id="run-7", role="trainer", node="2")
    stream = metrics.getStream("my_app")
    for number in (1, 2.5):
        stream.add_value("loss", number)
        stream.add_value("step.duration.ms", number * 10)
    assert chosen.flush(PATIENCE_S)

    attributes, found = read(receiver)
    assert {
        name: attributes[name] for name in ("service.name", "holdfast.run_id", "holdfast.role", "holdfast.node")
    } == {
        "service.name": "holdfast",
        "holdfast.run_id": "run-7",
        "holdfast.role": "trainer",
        "holdfast.node": "2",
    }
    assert "holdfast.rank" not in attributes
    (gauge,) = found["loss"].gauge.data_points
    assert gauge.as_double == 2.5
    assert [(each.key, each.value.string_value) for each in gauge.attributes] == [("group", "my_app")]
    (histogram,) = found["step.duration.ms"].histogram.data_points
    assert (histogram.count, histogram.sum) == (2, 35)
    assert found["step.duration.ms"].unit == "ms"
    chosen.close(PATIENCE_S)


def test_what_gathered_is_sent_when_the_sink_is_closed(receiver: Receiver) -> None:
    chosen = configure_from([f"otlp:{receiver.address}/"])
    metrics.put_metric("restarts", 3)
    chosen.close(PATIENCE_S)

    _, found = read(receiver)
    assert found["restarts"].gauge.data_points[0].as_int == 3


def test_a_receiver_that_refuses_is_reported_once_and_floods_no_log(
    receiver: Receiver, heard: list[Fact], caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 400
    chosen = configure_from([f"otlp:{receiver.address}"])
    for number in range(3):
        metrics.put_metric("x", number)
        assert chosen.flush(PATIENCE_S)

    assert len(receiver.posted) == 3
    assert [fact.kind for fact in heard] == ["outbox_trouble"]
    assert "the OTLP receiver did not take the metrics" in heard[0].sentence
    assert [record.name for record in caplog.records] == ["holdfast"]


def test_no_thread_of_the_sdk_runs_in_the_program(receiver: Receiver) -> None:
    import threading

    before = threading.active_count()
    chosen = configure_from([f"otlp:{receiver.address}"])
    assert threading.active_count() == before
    metrics.put_metric("x", 1)
    assert chosen.flush(PATIENCE_S)
    names = [thread.name for thread in threading.enumerate()]

    assert not [name for name in names if "otel" in name.lower() or "metricreader" in name.lower()]
    chosen.close(PATIENCE_S)


def test_a_worker_says_its_rank_and_leaves_out_what_it_does_not_know() -> None:
    attributes = resource_of(Source(run_id="r", host="h", rank=0))

    assert attributes["holdfast.rank"] == 0
    assert "holdfast.role" not in attributes


def test_a_missing_sdk_is_told_with_what_to_install() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk.metrics'] = None\n"
        "from holdfast.metrics.chosen import configure_from\n"
        "configure_from(['otlp:http://localhost:4318'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "UsageError: the metrics sink 'otlp' needs OpenTelemetry: pip install 'holdfast[otel]'" in done.stderr
