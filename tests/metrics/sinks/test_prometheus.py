"""Prometheus: what a real scrape sees, read by the official parser."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import pytest

from holdfast import metrics
from holdfast.errors import UsageError
from holdfast.metrics.api import MetricData
from holdfast.metrics.chosen import configure_from
from holdfast.metrics.sinks import prometheus
from holdfast.metrics.sinks.prometheus import CONTENT_TYPE, PrometheusMetricHandler, render
from tests.metrics.conftest import PATIENCE_S, Receiver

pytest.importorskip("prometheus_client", reason="needs prometheus-client")
from prometheus_client.parser import text_string_to_metric_families


def scrape(page: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """Read a page into values by series name and labels, buckets left out."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            if "le" not in sample.labels and not sample.name.endswith("_created"):
                labels = tuple(sample.labels[name] for name in ("group", "rank"))
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def value(name: str, number: float, group: str = "g") -> MetricData:
    return MetricData(1.0, group, name, number)


def test_a_gauge_holds_the_last_value_and_a_histogram_counts_durations() -> None:
    handler = PrometheusMetricHandler()
    for number in (1, 2, 3):
        handler.emit(value("loss", number))
        handler.emit(value("step.duration.ms", number * 10))

    assert scrape(render(handler.registry)) == {
        "holdfast_loss": {("g", ""): 3},
        "holdfast_step_duration_ms_count": {("g", ""): 3},
        "holdfast_step_duration_ms_sum": {("g", ""): 60},
    }


def test_types_and_buckets_are_declared() -> None:
    handler = PrometheusMetricHandler()
    handler.emit(value("loss", 1))
    handler.emit(value("save_ms", 20))
    families = {each.name: each for each in text_string_to_metric_families(render(handler.registry).decode())}

    assert families["holdfast_loss"].type == "gauge"
    assert families["holdfast_save_ms"].type == "histogram"
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["holdfast_save_ms"].samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets["10.0"], buckets["30.0"], buckets["+Inf"]) == (0, 1, 1)


def test_ranks_and_groups_are_labels() -> None:
    handler = PrometheusMetricHandler()
    handler.emit(value("loss", 1, "a"))
    handler.record(value("loss", 2, "a"), 0)
    handler.record(value("loss", 3, "b"), 7)

    assert scrape(render(handler.registry)) == {"holdfast_loss": {("a", ""): 1, ("a", "0"): 2, ("b", "7"): 3}}


def test_workers_that_are_gone_are_forgotten_and_may_come_back() -> None:
    handler = PrometheusMetricHandler()
    for rank in (None, 0, 1):
        handler.record(value("loss", 1), rank)
        handler.record(value("step_ms", 1), rank)
    handler.keep_ranks([1])
    assert set(scrape(render(handler.registry))["holdfast_loss"]) == {("g", ""), ("g", "1")}
    handler.record(value("loss", 9), 0)

    assert scrape(render(handler.registry))["holdfast_loss"][("g", "0")] == 9


def test_odd_labels_and_values_survive_the_scrape() -> None:
    handler = PrometheusMetricHandler()
    handler.emit(value("loss", float("nan"), 'a "quoted"\n\\group'))
    handler.emit(value("gain", float("inf")))

    found = scrape(render(handler.registry))
    ((labels, number),) = found["holdfast_loss"].items()
    assert labels == ('a "quoted"\n\\group', "")
    assert number != number
    assert found["holdfast_gain"][("g", "")] == float("inf")


def test_a_name_that_another_metric_brings_already_is_refused_alone() -> None:
    handler = PrometheusMetricHandler()
    handler.emit(value("step.ms", 1))
    with pytest.raises(UsageError, match="holdfast_step_ms_count cannot be shown to Prometheus"):
        handler.emit(value("step.ms.count", 1))
    handler.emit(value("loss", 2))

    assert scrape(render(handler.registry))["holdfast_loss"] == {("g", ""): 2}


def test_names_that_become_one_share_a_series_whatever_they_were() -> None:
    handler = PrometheusMetricHandler()
    handler.emit(value("step ms", 1))
    handler.emit(value("step.ms", 1))

    assert scrape(render(handler.registry))["holdfast_step_ms_count"] == {("g", ""): 2}


def test_series_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "SERIES_MAX", 2)
    handler = PrometheusMetricHandler()
    handler.emit(value("a", 1))
    handler.emit(value("b", 1))
    with pytest.raises(UsageError, match="only 2 series are kept"):
        handler.emit(value("c", 1))
    handler.emit(value("a", 5))

    assert scrape(render(handler.registry)) == {"holdfast_a": {("g", ""): 5}, "holdfast_b": {("g", ""): 1}}


def test_a_real_scrape_over_http_sees_the_platforms_values(receiver: Receiver) -> None:
    chosen = configure_from(["prometheus"])
    receiver.page = lambda: (CONTENT_TYPE, render(chosen.registry))
    metrics.put_metric("membership.nodes", 4)
    assert chosen.flush(PATIENCE_S)

    with urllib.request.urlopen(f"{receiver.address}/metrics", timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        page = answer.read()
    assert scrape(page) == {"holdfast_membership_nodes": {("torchelastic", ""): 4}}


def test_nothing_of_the_programs_own_registry_is_shown() -> None:
    handler = PrometheusMetricHandler()

    assert render(handler.registry) == b""


def test_a_missing_client_is_told_with_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from holdfast.metrics.chosen import configure_from\n"
        "configure_from(['prometheus'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (
        "UsageError: the metrics sink 'prometheus' needs its client: pip install 'holdfast[prometheus]'" in done.stderr
    )


def test_a_port_is_not_for_this_sink_to_take() -> None:
    with pytest.raises(
        UsageError, match="takes nothing after its name, not '9090': it is scraped from the health port"
    ):
        configure_from(["prometheus:9090"])


def test_a_worker_without_an_agents_socket_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="HOLDFAST_METRICS_SOCKET is not set"):
        prometheus.create_handler("")
