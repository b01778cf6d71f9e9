"""Names and values in the forms that sinks need. Pure."""

from __future__ import annotations

import re
from typing import SupportsFloat

from holdfast.errors import UsageError

NAME_MAX = 255

#: Our prefix in Prometheus, where all programs share one namespace.
PROMETHEUS_PREFIX = "holdfast_"

#: The bounds of the histogram buckets for durations: a millisecond to an hour.
BUCKETS_MS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_600_000)


def is_duration(name: str) -> bool:
    """Whether a metric is a duration in milliseconds: then every value counts, not only the last."""
    return name.endswith((".ms", "_ms", "duration"))


def number(value: object) -> float:
    """Return a value as a plain number; scalars of numpy and torch are numbers too."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, SupportsFloat):
        return float(value)
    raise UsageError(f"a metric's value must be a number, not {type(value).__name__}")


def prometheus_name(name: str) -> str:
    """Return the name as Prometheus allows it, with our prefix."""
    return (PROMETHEUS_PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name))[:NAME_MAX]


def otel_name(name: str) -> str:
    """Return the name as OpenTelemetry allows it: it begins with a letter and may hold `_.-/`."""
    name = re.sub(r"[^a-zA-Z0-9_./-]", "_", name)
    if not name[:1].isalpha():
        name = f"m_{name}"
    return name[:NAME_MAX]


def statsd_name(group: str, name: str) -> str:
    """Return `group.name` without the characters that are special in StatsD."""
    return re.sub(r"[:|@#\s/]", "_", f"{group}.{name}")[:NAME_MAX]
