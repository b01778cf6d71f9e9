"""When to save."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.choose import Every
from holdfast.errors import UsageError


def test_a_policy_counts_steps_from_the_last_save() -> None:
    every = Every(steps=10)

    assert [step for step in range(35) if every.is_due(step, 0.0) and not every.saved(step, 0.0)] == [10, 20, 30]


def test_a_policy_counts_minutes_too() -> None:
    every = Every(steps=1000, minutes=1)

    assert not every.is_due(1, 100.0)
    assert not every.is_due(2, 159.0)
    assert every.is_due(3, 160.0)
    every.saved(3, 160.0)
    assert not every.is_due(4, 200.0)


def test_a_policy_that_says_nothing_is_refused() -> None:
    with pytest.raises(UsageError):
        Every()
