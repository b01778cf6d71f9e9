"""`console`: standard output, one line a value."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.metrics.api import ConsoleMetricHandler, MetricHandler


def create_handler(argument: str) -> MetricHandler:
    """Return a handler that prints every value as `[timestamp][group]: name=value`."""
    if argument:
        raise UsageError("the metrics sink 'console' takes no argument: it prints to standard output")
    return ConsoleMetricHandler()
