"""`null`: nowhere."""

from __future__ import annotations

from holdfast.metrics.api import MetricHandler, NullMetricHandler


def create_handler(argument: str) -> MetricHandler:  # noqa: ARG001 - every sink is made with one
    """Return a handler that forgets every value."""
    return NullMetricHandler()
