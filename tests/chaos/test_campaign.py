"""A few runs of the campaign; `make campaign` has two hundred for each of its trainings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from holdfast.chaos.campaign import GLOO, RING, Training, Undisturbed, run_one
from holdfast.chaos.schedule import Fault, Kind, Moment, Schedule

pytest.importorskip("numpy")

# Each is two runs of a whole job, whose agents and workers start from nothing.
pytestmark = pytest.mark.timeout(400)

STEPS = 24
#: An even seed lets survivors wait for a replacement, an odd one lets them go on.
WAIT, GO_ON = 0, 1
SEEDS = {"wait": WAIT, "go on": GO_ON, "wait, with DDP": 2, "go on, with DDP": 3}


def schedule(seed: int, agents: int, workers: int, *faults: tuple[Kind, Moment, int, int]) -> Schedule:
    return Schedule(seed, agents, workers, STEPS, tuple(Fault(n, *fault) for n, fault in enumerate(faults)))


@pytest.fixture(scope="module")
def ring() -> Undisturbed:
    return Undisturbed(RING)


@pytest.fixture(scope="module")
def gloo() -> Undisturbed:
    if find_spec("torch") is None:
        pytest.skip("needs torch")
    return Undisturbed(GLOO)


def run(made: Schedule, undisturbed: Undisturbed) -> Any:
    """Run a schedule in which every fault strikes, to a good end."""
    verdict = run_one(made, undisturbed.training, undisturbed.result(made))
    assert verdict.complaints == [], verdict.folder
    assert verdict.struck == len(made.faults)
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "workers", "faults"),
    [
        (1, 3, [(Kind.SIGKILL, Moment.REDUCE, 5, 1), (Kind.SIGSTOP, Moment.OPTIMIZER, 12, 0)]),
        (1, 2, [(Kind.EXIT, Moment.SYNC, 0, 1), (Kind.COORDINATOR_RESTART, Moment.FORWARD, 9, 0)]),
        (2, 1, [(Kind.AGENT_KILL, Moment.FORWARD, 6, 1), (Kind.EXCEPTION, Moment.CHECKPOINT, 14, 0)]),
    ],
    ids=["killed and stopped", "exit in the sync and a restarted coordinator", "a killed agent"],
)
def test_a_run_with_faults_ends_as_if_nothing_had_happened(
    ring: Undisturbed, agents: int, workers: int, faults: list[tuple[Kind, Moment, int, int]]
) -> None:
    assert run(schedule(-1, agents, workers, *faults), ring).is_bit_equal


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("how", ["wait", "wait, with DDP"])
def test_with_torch_not_a_bit_is_different_where_every_step_is_done_at_full_size(gloo: Undisturbed, how: str) -> None:
    faults = (Kind.SIGKILL, Moment.REDUCE, 5, 1), (Kind.SIGSTOP, Moment.OPTIMIZER, 12, 0)

    assert run(schedule(SEEDS[how], 1, 2, *faults), gloo).is_bit_equal


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("how", ["go on", "go on, with DDP"])
def test_with_torch_a_run_that_changed_its_size_ends_as_good_as_equal(gloo: Undisturbed, how: str) -> None:
    faults = (Kind.SHRINK, Moment.FORWARD, 6, 1), (Kind.EXCEPTION, Moment.CHECKPOINT, 14, 0)

    assert not run(schedule(SEEDS[how], 2, 1, *faults), gloo).is_bit_equal


@pytest.mark.slow
@pytest.mark.torch
def test_a_worker_that_dies_while_it_writes_a_checkpoint_leaves_none_that_anybody_takes(gloo: Undisturbed) -> None:
    """Each of the two in turn: the first while it writes, the second soon after."""
    faults = (Kind.SIGKILL, Moment.CHECKPOINT, 10, 0), (Kind.SIGKILL, Moment.CHECKPOINT, 10, 1)

    assert run(schedule(WAIT, 1, 2, *faults), gloo).is_bit_equal


def test_what_a_schedule_must_end_with_depends_on_how_it_trains() -> None:
    calm = [GLOO.calm(schedule(seed, 1, 2)) for seed in SEEDS.values()]

    assert len(set(calm)) == len(calm)
    for seed, each in zip(SEEDS.values(), calm, strict=True):
        assert GLOO.arguments(each) == GLOO.arguments(schedule(seed, 1, 2))
    grown = schedule(WAIT, 2, 1, (Kind.GROW, Moment.FORWARD, 3, 0))
    assert GLOO.arguments(grown) == GLOO.arguments(GLOO.calm(grown))
    one: Training = RING
    assert one.calm(schedule(5, 2, 2)) == one.calm(schedule(6, 1, 4))
