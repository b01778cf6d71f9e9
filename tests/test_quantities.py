"""Quantities as people write and read them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.quantities import count, parse_duration, size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.25", 0.25), ("300ms", 0.3), ("10m", 600.0), ("2 min", 120.0), ("1h", 3600.0), ("1d", 86400.0), (2, 2)],
)
def test_durations_may_be_fractions_and_have_units(text: Any, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1 week", "1e3"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a length of time"):
        parse_duration(text)


def test_sizes_are_told_in_three_digits() -> None:
    assert [size(nbytes) for nbytes in (0, 12, 3000, 3_456_000, 2 * 10**12)] == [
        "0 B",
        "12 B",
        "3 kB",
        "3.46 MB",
        "2 TB",
    ]


def test_one_is_singular() -> None:
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
