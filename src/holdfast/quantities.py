"""Quantities as people write and read them: lengths of time, sizes, counts. Pure."""

from __future__ import annotations

import re
from typing import Protocol, runtime_checkable

from holdfast.errors import UsageError

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|min|h|d)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
#: Longer timeouts are this long: what sockets can still count.
TIMEOUT_S_MAX = 1e9
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


def parse_duration(text: str | float) -> float:
    """Read a length of time in seconds: `2.5`, `300ms`, `10m`, `1h`, `1d`."""
    match = _DURATION.fullmatch(str(text).strip().lower())
    if match is None:
        raise UsageError(f"'{text}' is not a length of time: write seconds, or 300ms, 10m, 1h")
    return float(match[1]) * _UNIT_S[match[2]]


@runtime_checkable
class _Duration(Protocol):
    """What `timedelta` promises."""

    def total_seconds(self) -> float: ...


def to_seconds(timeout: float | _Duration) -> float:
    """Return a timeout in seconds, from seconds or a `timedelta`; raises `UsageError` if it is negative."""
    seconds = timeout.total_seconds() if isinstance(timeout, _Duration) else float(timeout)
    if not seconds >= 0:
        raise UsageError(f"a timeout is zero or more seconds, not {seconds}")
    return min(seconds, TIMEOUT_S_MAX)


def size(nbytes: int) -> str:
    """Tell a number of bytes: `12 B`, `3.4 MB`."""
    return next(f"{nbytes / unit:.3g} {name}" for unit, name in _UNITS if nbytes >= unit or unit == 1)


def count(number: int, noun: str) -> str:
    """Count a noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ago(seconds: float) -> str:
    """Tell how long ago something was: `3 s ago`, `5 min ago`, `2 h ago`."""
    whole = max(0, int(seconds))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= length:
            return f"{whole // length} {unit} ago"
    return f"{whole} s ago"


def length(seconds: float) -> str:
    """Tell a length of time: `0.4 s`, `12.3 s`, `4 min 05 s`, `2 h 03 min`, `3 d 04 h`."""
    if round(seconds, 1) < 60:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for unit, name, part, part_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part:02} {part_name}"
    return f"{whole // 60} min {whole % 60:02} s"
