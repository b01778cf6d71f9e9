"""The closed form: what it comes to at the edges, and the best interval and number of spares."""

from dataclasses import replace

import pytest

from holdfast.errors import UsageError
from holdfast.forecast.formula import best_interval, best_spares, published, shares, value_of
from holdfast.forecast.plan import Loss, Noticed, Plan

HOUR_S = 3600.0
PLAN = Plan(128, 128 * 8 * HOUR_S, interval_s=1800.0, spares=8)


@pytest.mark.parametrize("noticed", list(Noticed))
@pytest.mark.parametrize("groups", [1, 8])
def test_goodput_and_losses_are_the_whole_time(noticed, groups):
    found = shares(replace(PLAN, noticed=noticed, groups=groups, spares=1))

    assert found.goodput + sum(found.losses.values()) == pytest.approx(1)
    assert min(found.losses.values()) >= 0


def test_without_failures_only_checkpoints_cost_something():
    found = shares(replace(PLAN, node_mtbf_s=1e18, interval_s=540.0, checkpoint_s=60.0))

    assert found.goodput == pytest.approx(0.9)
    assert found.losses[Loss.CHECKPOINTS] == pytest.approx(0.1)


def test_small_losses_are_those_of_the_published_formula():
    for noticed in Noticed:
        plan = replace(PLAN, noticed=noticed, node_mtbf_s=128 * 100 * HOUR_S)

        assert shares(plan).goodput == pytest.approx(published(plan), abs=0.001)


def test_a_recovery_that_is_begun_again_at_once_costs_less_than_one_more_at_its_end():
    often = replace(PLAN, node_mtbf_s=128 * HOUR_S / 2, restart_s=900.0)

    goodput = {noticed: shares(replace(often, noticed=noticed)).goodput for noticed in Noticed}

    assert goodput[Noticed.AT_ONCE] > goodput[Noticed.AT_END]


def test_no_other_interval_is_better_than_the_best():
    for pause_s in (1.0, 60.0, 1200.0):
        plan = replace(PLAN, checkpoint_s=pause_s)
        best_s = best_interval(plan)
        best = shares(replace(plan, interval_s=best_s)).goodput

        for other_s in (best_s * 0.9, best_s * 1.1):
            assert shares(replace(plan, interval_s=other_s)).goodput < best


def test_no_other_number_of_spares_gives_more_for_all_nodes():
    best = best_spares(PLAN)
    value = value_of(replace(PLAN, spares=best))

    assert best > 0
    assert all(value_of(replace(PLAN, spares=other)) <= value for other in range(3 * best))


def test_checkpoints_that_cost_nothing_are_made_all_the_time():
    plan = replace(PLAN, checkpoint_s=0.0)

    assert best_interval(plan) == 0
    assert shares(replace(plan, interval_s=0.0)).losses[Loss.REDONE] == 0


def test_a_job_that_never_comes_to_a_checkpoint_makes_nothing():
    assert shares(replace(PLAN, interval_s=1e9)).goodput == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": 0}, "one GPU or more"),
        ({"groups": 200}, "200 replica groups cannot be made of 128 nodes"),
        ({"node_mtbf_s": 0.0}, "more than 0"),
        ({"needs_repair": 78.0}, "a share lies between 0 and 1"),
        ({"spares": -1}, "0 or more"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(UsageError, match=words):
        replace(PLAN, **change)
