"""What the demo understands of the lines that agents and workers write."""

from __future__ import annotations

import json

import pytest

from holdfast.demo.node import parse
from holdfast.demo.story import Fitted, RoundBroke, Stepped


def test_a_step_is_understood_behind_the_prefix_of_a_teed_line() -> None:
    line = "[default1]:step=7 loss=0.250000 rank=3 world=4 round=2 pid=812"

    assert parse("B", line) == Stepped("B", 3, 4, 2, 7, 0.25, 812)


def test_the_last_line_tells_of_the_model() -> None:
    assert parse("A", "[default0]:finished=180 error=1.2e-03 drift=0.0e+00") == Fitted(180, 0.0012, 0.0)


def test_a_broken_round_is_told_by_the_coordinator() -> None:
    fact = {"time": 1.0, "kind": "round_broken", "sentence": "", "data": {"round": 2, "reason": "host joined"}}

    assert parse("A", json.dumps(fact)) == RoundBroke(2, "host joined")


@pytest.mark.parametrize(
    "line", ["", "Traceback (most recent call last):", "step=3", "step=x loss=y", "{", '{"kind": "round_broken"}', "{}"]
)
def test_anything_else_means_nothing(line: str) -> None:
    assert parse("A", line) is None
