"""The sinks that need no library: `null`, `console` (standard output) and `jsonl:PATH`.

    {"timestamp": 1574213883.418, "group": "my_app", "name": "loss", "value": 0.25, "host": "node-3", "rank": 5}

All agents and workers of a host may share one file of JSON lines. An agent's lines have no rank. JSON has no number for
values that are not finite: `NaN`, `Infinity` and `-Infinity` are written as strings.
"""

from __future__ import annotations

import json
import math
import socket

from holdfast.metrics.api import ConsoleMetricHandler, MetricData, MetricHandler, NullMetricHandler
from holdfast.metrics.names import number
from holdfast.metrics.source import current_rank
from holdfast.sinks import open_lines, refuse_argument

NOUN = "metrics sink"


def create_null(argument: str) -> MetricHandler:
    """Return a handler that forgets every value."""
    refuse_argument(NOUN, "null", argument)
    return NullMetricHandler()


def create_console(argument: str) -> MetricHandler:
    """Return a handler that prints every value as `[timestamp][group]: name=value`."""
    refuse_argument(NOUN, "console", argument)
    return ConsoleMetricHandler()


def create_jsonl(argument: str) -> MetricHandler:
    """Return a handler that appends to the file named by the argument."""
    return JsonLinesMetricHandler(argument)


class JsonLinesMetricHandler(MetricHandler):
    """Appends one line of JSON for every value."""

    def __init__(self, path: str) -> None:
        self._file = open_lines(NOUN, path)
        self._host = socket.gethostname()

    def emit(self, metric_data: MetricData) -> None:
        self._file.append(line_of(metric_data, self._host, current_rank()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def line_of(data: MetricData, host: str, rank: int | None) -> bytes:
    """Return the line for one value."""
    value: float | str = number(data.value)
    if isinstance(value, float) and not math.isfinite(value):
        value = json.dumps(value)
    fields = {"timestamp": data.timestamp, "group": data.group_name, "name": data.name, "value": value, "host": host}
    if rank is not None:
        fields["rank"] = rank
    return json.dumps(fields).encode()
