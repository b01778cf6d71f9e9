"""What the campaign complains about, and what it lets pass."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from holdfast.chaos.judge import TOLERANCE, judge


def bits(*numbers: float) -> str:
    return struct.pack(f"<{len(numbers)}d", *numbers).hex()


def result(**changes: Any) -> dict[str, Any]:
    whole = {"weights": bits(1.0, 2.0), "momentum": bits(0.5), "used": [2, 2, 2], "rank": 0}
    return {**whole, **changes}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"weights": bits(1.0, 2.0 + 1e-15)}, "bit by bit"),
        ({"momentum": bits(0.6)}, "another model"),
        ({"used": [2, 3, 2]}, "not used equally often: {1: 3}"),
        ({"used": [3, 3, 3]}, "every sample was used 3 times"),
    ],
)
def test_the_campaign_sees_what_is_wrong(changes: dict[str, Any], complaint: str) -> None:
    assert any(complaint in each for each in judge([result(**changes)], result()))


def test_workers_that_differ_or_leave_nothing_are_seen() -> None:
    assert judge([], None) == ["no worker has left a result"]
    assert judge([result()], None) == []
    assert any("different models" in each for each in judge([result(), result(weights=bits(9.0), rank=1)], None))


def test_rounding_is_let_pass_only_where_the_number_of_workers_changed() -> None:
    expected = result(sizes=[2, 2])
    near, far = bits(1.0, 2.0 + TOLERANCE / 2), bits(1.0, 2.0 + TOLERANCE * 2)

    assert judge([result(sizes=[2, 1], weights=near)], expected) == []
    assert judge([result(sizes=[2, 2], weights=near)], expected) != []
    assert "by 2e-09" in judge([result(sizes=[2, 1], weights=far)], expected)[0]
