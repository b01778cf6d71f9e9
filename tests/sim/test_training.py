"""Workers that train in process, in the simulator: the real trainer, member and run machines under every fault.

Bugs planted on purpose show that the checks can fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from holdfast.agent.machine import AgentEffect, AgentEvent, AgentMachine, WorkerFailed
from holdfast.coordinator.messages import RoundId
from holdfast.sim import nodes as nodes_module
from holdfast.sim import workers as workers_module
from holdfast.sim.scenario import make_training
from holdfast.sim.simulation import Outcome, Simulation
from holdfast.sim.training import Model
from holdfast.sim.violation import Violation
from holdfast.sim.workers import SimWorker
from holdfast.train import machine as trainer_module
from holdfast.train.events import (
    Account,
    CloseRun,
    MoveState,
    NewsAwaited,
    SavedFound,
    StepDone,
    StepRolledBack,
    SumsSettled,
    TrainerEffect,
    TrainerEvent,
)
from holdfast.train.machine import UNEXPLAINED_MAX, TrainerMachine
from holdfast.train.source import Plan

SEEDS_MAX = 300
#: A seed that notices what few do. It is tried first; where the simulator has changed and it does not, all follow.
KEEN = 164


@pytest.mark.parametrize("start", range(0, 160, 20))
def test_no_step_is_lost_and_every_training_ends(start: int) -> None:
    outcomes = [Simulation(make_training(seed)).run() for seed in range(start, start + 20)]

    assert [outcome for outcome in outcomes if outcome.check is not None] == []


#: One worker regroups alone behind a partition. It had undone a step that the others counted, and that is in a
#: checkpoint of one of them.
UNDONE_ALONE = 9513


@pytest.mark.parametrize(("asks", "takes_long"), [(True, False), (False, True), (False, False)])
def test_a_step_that_others_have_saved_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch, asks: bool, takes_long: bool
) -> None:
    """Either reason to look for checkpoints is enough here; without both the step is lost, as it once was."""
    if not asks:
        monkeypatch.setattr(trainer_module, "may_be_behind", lambda _: False)
    if not takes_long:
        monkeypatch.setattr(trainer_module, "LONG_WAIT_S", float("inf"))

    lost = Simulation(make_training(UNDONE_ALONE, nodes_max=8)).run().check

    assert lost == (None if asks or takes_long else "no step is lost while a worker or a checkpoint has it")


class BlamesItself(TrainerMachine):
    """Takes an error for its own when no news explains it in time, though no coordinator could tell: as 0.1.0 did."""

    def handle(self, event: TrainerEvent, now: float) -> list[TrainerEffect]:
        self._unexplained = UNEXPLAINED_MAX
        return super().handle(NewsAwaited(False, True) if isinstance(event, NewsAwaited) else event, now)


class TrustsEveryRollback(TrainerMachine):
    """Believes that every step was undone."""

    def handle(self, event: TrainerEvent, now: float) -> list[TrainerEffect]:
        return super().handle(StepRolledBack(True) if isinstance(event, StepRolledBack) else event, now)


class CountsTooEarly(TrainerMachine):
    """Counts a step before its sums have arrived."""

    def handle(self, event: TrainerEvent, now: float) -> list[TrainerEffect]:
        effects = super().handle(event, now)
        return super().handle(SumsSettled(), now) if isinstance(event, StepDone) else effects


class IgnoresCheckpoints(TrainerMachine):
    """Never finds a checkpoint."""

    def handle(self, event: TrainerEvent, now: float) -> list[TrainerEffect]:
        return super().handle(SavedFound(-1) if isinstance(event, SavedFound) else event, now)


class KeepsItsOwn(TrainerMachine):
    """Never takes the state of another worker."""

    def _move(self) -> None:
        self._on_shared()


class ForgetsItsTransfer(TrainerMachine):
    """Believes after a transfer that it is where it was before."""

    def handle(self, event: TrainerEvent, now: float) -> list[TrainerEffect]:
        step = self.step
        effects = super().handle(event, now)
        if any(isinstance(effect, MoveState) for effect in effects):
            self.step = step
        if type(event).__name__ == "StateMoved":
            self.step = step
        return effects


PLANTED: list[tuple[type[TrainerMachine], tuple[str, ...]]] = [
    (BlamesItself, ("no error is taken for the worker's own that is not",)),
    (TrustsEveryRollback, ("no worker trains on from a torn state", "no checkpoint is torn")),
    (CountsTooEarly, ("a step counts once its sums have arrived",)),
    (IgnoresCheckpoints, ("no step is lost while a worker or a checkpoint has it",)),
    (
        KeepsItsOwn,
        (
            "all members of a round begin with the same state",
            "no step is lost while a worker or a checkpoint has it",
            "no worker trains on from a torn state",
        ),
    ),
    (ForgetsItsTransfer, ("a trainer knows its step",)),
]


def first_failure() -> Outcome | None:
    outcomes = (Simulation(make_training(seed)).run() for seed in (KEEN, *range(SEEDS_MAX)))
    return next((outcome for outcome in outcomes if outcome.check is not None), None)


@pytest.mark.parametrize(("machine", "checks"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_of_the_trainer_is_caught(
    monkeypatch: pytest.MonkeyPatch, machine: type[TrainerMachine], checks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(workers_module, "TrainerMachine", machine)

    outcome = first_failure()

    assert outcome is not None, f"{SEEDS_MAX} seeds did not notice: {machine.__doc__}"
    assert outcome.check in checks, outcome


class ReplacesInVain(AgentMachine):
    """Answers every failure with a new worker, also one that no new worker can mend."""

    def handle(self, event: AgentEvent, now: float) -> list[AgentEffect]:
        if isinstance(event, WorkerFailed):
            event = WorkerFailed(msgspec.structs.replace(event.cause, ends_job=False))
        return super().handle(event, now)


#: Seeds whose training loses its state.
LOST = (164, 183, 304, 413, 554)
#: In this one the next round of nodes is sealed while the agent says so.
LOST_BETWEEN_ROUNDS = 920137


@pytest.mark.parametrize("seed", [*LOST[:2], LOST_BETWEEN_ROUNDS])
def test_a_training_whose_state_is_lost_ends_its_job(seed: int) -> None:
    simulation = Simulation(make_training(seed))

    assert simulation.run().check is None
    assert simulation.training is not None
    assert simulation.training.failed_for is not None
    ends = [node.outcome for node in simulation.current.values() if node.alive and node.outcome is not None]
    assert ends
    assert not any(outcome.succeeded for outcome in ends)


def test_a_loss_that_a_second_worker_tells_is_the_same_loss() -> None:
    """It tells it when the first has ended, whose torn state was further than its own."""
    simulation = Simulation(make_training(0))
    safety = simulation.training
    assert safety is not None
    plan = simulation.scenario.training
    assert plan is not None
    torn, whole = Model(plan), Model(plan)
    torn.used, torn.torn, whole.used = [(0, 1), (1, 2)], True, [(0, 1)]
    first = SimpleNamespace(id="a", alive=True, workers=RoundId(3, "x"), model=torn)
    second = SimpleNamespace(id="b", alive=True, workers=RoundId(3, "x"), model=whole)
    safety._workers = {"a": cast("SimWorker", first)}
    safety.closes(cast("SimWorker", first), CloseRun("step 2 is lost", failed=True))
    safety._workers = {"b": cast("SimWorker", second)}

    safety.closes(cast("SimWorker", second), CloseRun("step 2 is lost", failed=True))
    with pytest.raises(Violation, match="a training fails only when its state is lost"):
        safety.closes(cast("SimWorker", second), CloseRun("step 1 is lost", failed=True))


def test_a_worker_that_is_replaced_in_vain_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "AgentMachine", ReplacesInVain)

    outcomes = (Simulation(make_training(seed)).run() for seed in (*LOST, *range(SEEDS_MAX)))
    found = next((outcome for outcome in outcomes if outcome.check is not None), None)

    assert found is not None
    assert found.check == "no worker is started for a training that is lost"


#: The first seed that shows what 0.1.0 did when a worker and the coordinator died together: the survivors took the
#: error for their own, ended, and all progress was lost.
DEFECT_SEED = 0


def test_the_seed_that_finds_the_worst_defect_of_0_1_0_finds_it_on_its_logic_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Simulation(make_training(DEFECT_SEED)).run().check is None
    monkeypatch.setattr(workers_module, "TrainerMachine", BlamesItself)

    assert Simulation(make_training(DEFECT_SEED)).run().check == "no error is taken for the worker's own that is not"


def takes_any(accounts: Sequence[Account]) -> Plan:
    """Take the state of the first rank, whole or not, the furthest or not."""
    return Plan(0, False, tuple(range(1, len(accounts))))


def test_a_state_that_is_taken_from_anyone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "choose_source", takes_any)

    outcome = first_failure()

    assert outcome is not None
    assert outcome.check in (
        "no step is lost while a worker or a checkpoint has it",
        "no worker trains on from a torn state",
        "a trainer knows its step",
    )
