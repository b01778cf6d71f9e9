"""`jsonl:PATH`: a file of JSON lines, which all agents and workers of a host may share.

    {"timestamp": 1574213883.418, "group": "my_app", "name": "loss", "value": 0.25, "host": "node-3", "rank": 5}

Every line is one write to a file opened for appending, so that lines of many processes never mix. An agent's lines
have no rank. JSON has no word for what is not finite: `NaN`, `Infinity` and `-Infinity` are written as strings.
"""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.metrics.names import number
from holdfast.metrics.source import current_rank


def create_handler(argument: str) -> MetricHandler:
    """Return a handler that appends to the file named by the argument."""
    if not argument:
        raise UsageError("the metrics sink 'jsonl' needs a file: write jsonl:PATH")
    return JsonLinesMetricHandler(argument)


class JsonLinesMetricHandler(MetricHandler):
    """Appends one line of JSON for every value."""

    def __init__(self, path: str | Path) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Non-blocking, because a named pipe that nobody reads would hold us here; files do not care.
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise UsageError(f"the metrics file '{path}' cannot be written: {error.strerror}") from error
        self._host = socket.gethostname()

    def emit(self, metric_data: MetricData) -> None:
        """Write one line."""
        line = line_of(metric_data, self._host, current_rank())
        if os.write(self._fd, line) < len(line):
            raise OSError("a line was cut short, the disk is full")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def line_of(data: MetricData, host: str, rank: int | None) -> bytes:
    """Return the line for one value."""
    value: float | str = number(data.value)
    if isinstance(value, float) and not math.isfinite(value):
        value = json.dumps(value)
    fields = {"timestamp": data.timestamp, "group": data.group_name, "name": data.name, "value": value, "host": host}
    if rank is not None:
        fields["rank"] = rank
    return json.dumps(fields).encode() + b"\n"
