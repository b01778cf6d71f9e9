"""The programs that the documents of torchelastic show, run as they stand."""

from __future__ import annotations

import re
import time

import pytest

from holdfast import metrics
from tests.metrics.conftest import Remembering

LINE = re.compile(r"\[\d{10}\.\d+\]\[my_app\]: my_metric=\d+")


def test_adding_metric_data_measures_a_function() -> None:
    handler = Remembering()
    metrics.configure(handler)

    def calculate() -> None:
        """Something that takes time."""

    def my_method() -> None:
        ms = metrics.getStream(group="my_app")
        start = time.time()
        calculate()
        end = time.time()

        ms.add_value("calculate_latency", int(end - start))

    my_method()

    assert [(group, name) for group, name, _ in handler.values] == [("my_app", "calculate_latency")]
    assert isinstance(handler.values[0][2], int)


def test_publishing_to_the_console_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    metrics.configure(metrics.ConsoleMetricsHandler(), group="torchelastic")
    metrics.configure(metrics.ConsoleMetricsHandler(), group="my_app")

    metrics.getStream("my_app").add_value("my_metric", 1)
    metrics.getStream("torchelastic").add_value("checkpoint.write_latency_ms", 12)
    metrics.getStream("elsewhere").add_value("unseen", 3)

    mine, platform = capsys.readouterr().out.splitlines()
    assert LINE.fullmatch(mine)
    assert re.fullmatch(r"\[\d{10}\.\d+\]\[torchelastic\]: checkpoint\.write_latency_ms=12", platform)


def test_a_custom_handler_prints_the_documented_lines(capsys: pytest.CaptureFixture[str]) -> None:
    class StdoutMetricHandler(metrics.MetricHandler):
        def emit(self, metric_data):
            print(f"[{metric_data.timestamp}][{metric_data.group_name}]: {metric_data.name}={metric_data.value}")

    metrics.configure(StdoutMetricHandler(), group="my_app")
    stream = metrics.getStream("my_app")
    stream.add_value("my_metric", 1)
    stream.add_value("my_metric", 2)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(LINE.fullmatch(line) for line in lines)


def test_a_launcher_of_ones_own_initializes_and_configures() -> None:
    class MyMetricHandler(metrics.MetricHandler):
        def __init__(self) -> None:
            self.pushed: list[metrics.MetricData] = []

        def emit(self, metric_data: metrics.MetricData) -> None:
            self.pushed.append(metric_data)

    handler = MyMetricHandler()
    metrics.initialize_metrics()
    metrics.configure(handler)
    metrics.put_metric("workers.default.run_total", 1)

    assert [(data.group_name, data.name) for data in handler.pushed] == [("torchelastic", "workers.default.run_total")]
