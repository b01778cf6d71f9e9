"""Simulations, without the machines and with them, come to what the formula says."""

from dataclasses import replace
from random import Random

import pytest

from holdfast.errors import UsageError
from holdfast.forecast.fleet import Fleet
from holdfast.forecast.formula import shares
from holdfast.forecast.plan import Loss, Noticed, Plan
from holdfast.forecast.simulate import simulate

HOUR_S = 3600.0
#: Eight nodes of which one fails every two hours, and is back after four: losses of every kind.
PLAN = Plan(8, 16 * HOUR_S, interval_s=600.0, spares=2, repair_s=4 * HOUR_S, restart_s=600.0)


@pytest.mark.parametrize("noticed", list(Noticed))
@pytest.mark.parametrize("groups", [1, 4])
def test_a_simulation_comes_to_what_the_formula_says(noticed, groups):
    plan = replace(PLAN, noticed=noticed, groups=groups)
    rng = Random(1)

    found = simulate(plan, 2000, rng.expovariate, rng.random).shares()
    expected = shares(plan)

    assert found.goodput == pytest.approx(expected.goodput, abs=0.02)
    for loss in Loss:
        assert found.losses.get(loss, 0.0) == pytest.approx(expected.losses.get(loss, 0.0), abs=0.02)


def test_one_seed_has_one_story():
    one, two = ((rng.expovariate, rng.random) for rng in (Random(3), Random(3)))

    assert simulate(PLAN, 10, *one) == simulate(PLAN, 10, *two)


def test_the_real_machines_come_to_what_the_formula_says():
    fleet = Fleet(PLAN, Random(0))

    found = fleet.run(50).shares()
    fleet.check()
    expected = shares(PLAN)

    assert found.goodput == pytest.approx(expected.goodput, abs=0.03)
    assert found.losses[Loss.WAITING] == pytest.approx(expected.losses[Loss.WAITING], abs=0.05)
    assert fleet.toll.rounds > 200


def test_skipping_the_time_in_which_nodes_only_beat_changes_nothing():
    plan = replace(PLAN, nodes=3, node_mtbf_s=3 * HOUR_S / 4, repair_s=HOUR_S, spares=1)
    skipping, living = Fleet(plan, Random(5)), Fleet(plan, Random(5), skip=False)

    found, expected = skipping.run(0.25), living.run(0.25)

    assert skipping.toll.skipped_s > 0 == living.toll.skipped_s
    assert found.failures == expected.failures > 10
    assert skipping.toll.rounds == living.toll.rounds
    assert found.useful_s == pytest.approx(expected.useful_s, abs=60)
    for loss in Loss:
        assert found.lost_s[loss] == pytest.approx(expected.lost_s[loss], abs=60)


def test_the_machines_know_no_replica_groups():
    with pytest.raises(UsageError, match="does not support replica groups"):
        Fleet(replace(PLAN, groups=2), Random(0))
