"""Schedules of faults: the same seed gives the same, and every kind and moment comes up."""

from __future__ import annotations

import random
from collections import Counter

from holdfast.chaos.schedule import OF_AGENTS, OF_REPLICAS, REPLICA, Kind, Moment, choose


def test_a_seed_gives_the_same_schedule_every_time() -> None:
    assert choose(7, random.Random(7)) == choose(7, random.Random(7))
    assert choose(7, random.Random(7)) != choose(8, random.Random(8))


def test_two_hundred_seeds_hold_every_kind_at_every_moment() -> None:
    schedules = [choose(seed, random.Random(seed)) for seed in range(200)]
    faults = [fault for schedule in schedules for fault in schedule.faults]

    assert {fault.kind for fault in faults} == set(Kind) - set(OF_REPLICAS)
    assert {fault.moment for fault in faults} == set(Moment) - {Moment.TRANSFER}
    assert Counter(schedule.world_size for schedule in schedules).keys() == {2, 3, 4}


def test_with_replicas_whole_ones_are_killed_pairs_of_workers_and_workers_that_move_their_part() -> None:
    schedules = [choose(seed, random.Random(seed), REPLICA) for seed in range(200)]
    faults = [fault for schedule in schedules for fault in schedule.faults]

    assert {fault.kind for fault in faults} == set(Kind)
    assert {fault.moment for fault in faults} == set(Moment)
    assert {schedule.world_size // REPLICA for schedule in schedules} == {2, 3}


def test_faults_of_agents_need_two_and_leave_one() -> None:
    for seed in range(500):
        schedule = choose(seed, random.Random(seed))
        kinds = [fault.kind for fault in schedule.faults]
        if schedule.agents == 1:
            assert not set(kinds) & set(OF_AGENTS)
        assert kinds.count(Kind.SHRINK) + kinds.count(Kind.AGENT_KILL) <= 1
        assert all(0 <= fault.rank < schedule.world_size for fault in schedule.faults)
        assert all(fault.step < schedule.steps for fault in schedule.faults)
