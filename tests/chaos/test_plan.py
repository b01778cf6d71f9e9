"""Plans of faults on a user's own job."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from holdfast.chaos.plan import (
    ABOUT,
    LASTING,
    Node,
    PlannedFault,
    Strike,
    Target,
    choose_target,
    make_plan,
    parse_kinds,
)
from holdfast.errors import UsageError

TWO = [Node(10, {0: 11, 1: 12}), Node(20, {2: 21, 3: 22})]


def plan(seed: int, count: int = 12) -> tuple[PlannedFault, ...]:
    return make_plan(tuple(Strike), count, 30.0, 5.0, random.Random(seed))


def fault(kind: Strike, pick: float) -> PlannedFault:
    return PlannedFault(1, kind, 30.0, pick)


def test_a_seed_makes_the_same_plan_every_time() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_every_kind_comes_up_before_one_comes_up_again() -> None:
    for seed in range(50):
        kinds = [each.kind for each in plan(seed)]
        assert Counter(kinds[:6]) == Counter(kinds[6:]) == Counter(Strike)


def test_faults_come_in_order_about_every_interval_and_only_some_last() -> None:
    faults = plan(3, 100)

    assert [each.number for each in faults] == list(range(1, 101))
    assert all(abs(each.at_s - 30.0 * each.number) <= 3.0 for each in faults)
    assert all(each.for_s == (5.0 if each.kind in LASTING else 0.0) for each in faults)


def test_names_of_faults_are_read_and_unknown_ones_are_answered_with_all() -> None:
    assert parse_kinds("freeze, kill-worker,freeze") == (Strike.FREEZE, Strike.KILL_WORKER)
    with pytest.raises(UsageError, match=r"no fault 'kill'; there are kill-worker, kill-agent"):
        parse_kinds("kill")
    assert set(ABOUT) == set(Strike)


def test_a_fault_chooses_among_what_is_there() -> None:
    assert choose_target(fault(Strike.KILL_WORKER, 0.0), TWO, 2) == Target(TWO[0], 0)
    assert choose_target(fault(Strike.FREEZE, 0.99), TWO, 2) == Target(TWO[1], 3)
    assert choose_target(fault(Strike.KILL_AGENT, 0.6), TWO, 2) == Target(TWO[1])
    assert Target(TWO[1], 3).pids == (22,)
    assert Target(TWO[1]).pids == (20, 21, 22)


def test_a_fault_that_has_no_target_says_why() -> None:
    for kind in (Strike.KILL_AGENT, Strike.DRAIN, Strike.FREEZE_NODE, Strike.CUT):
        assert "one node only" in str(choose_target(fault(kind, 0.5), TWO[:1], 1))
        assert choose_target(fault(kind, 0.5), TWO[:1], 2) == Target(TWO[0])  # the other node is on another host
        assert "no agent" in str(choose_target(fault(kind, 0.5), [], 2))
    assert "no worker" in str(choose_target(fault(Strike.FREEZE, 0.5), [Node(10, {})], 1))
