"""Bugs planted on purpose: each must be caught by the checkers within a bounded number of seeds."""

import pytest

from holdfast.agent.machine import AgentEffect, AgentEvent, AgentMachine
from holdfast.agent.machine import Stage as AgentStage
from holdfast.coordinator import machine as coordinator_machine
from holdfast.coordinator import rounds as rounds_module
from holdfast.coordinator.events import NodeJoined, RunEffect, RunEvent, Save
from holdfast.coordinator.messages import Place, Sealed
from holdfast.coordinator.run import RunMachine
from holdfast.coordinator.state import RunRecord, Stage
from holdfast.rendezvous import machine as member_module
from holdfast.rendezvous.machine import (
    AskFailed,
    Finish,
    MemberMachine,
    RoundBroken,
    RunEnded,
    State,
)
from holdfast.sim import nodes as nodes_module
from holdfast.sim.__main__ import main
from holdfast.sim.batch import run_seed
from holdfast.sim.scenario import make_scenario
from holdfast.sim.shrink import apply, shrink
from holdfast.sim.simulation import Outcome, simulate
from holdfast.wire.frames import Message

SEEDS_MAX = 400
NODES = (5, 9)
#: Seeds that notice what few do. They are tried first; where the simulator has changed and one does not, all follow.
KEEN = {"ForgetsTheEnd": 177, "FinishesOnce": 93, "ChargesAgain": 68}


class SealsTooEarly(RunMachine):
    """Does not wait for survivors that may still run workers."""

    def _holdups(self) -> bool:
        return False


class NeverExpires(RunMachine):
    """Forgets to look at leases."""

    def _expire(self, now: float) -> None:
        for node in self.nodes.values():
            node.expires_at = max(node.expires_at, now + node.spec.lease_s)
        super()._expire(now)


class ReusesNumbers(RunMachine):
    """Counts rounds by how often it has gathered, not by how many there were."""

    def _seal(self, now: float) -> None:
        if self.stage is Stage.REGROUPING:
            self.last_number -= 1
        super()._seal(now)


class ChargesAgain(RunMachine):
    """Charges a round whenever a node has come back."""

    def _charge(self) -> bool:
        if self.round is not None:
            self.round.charged = False
        return super()._charge()


class ChargesVictims(RunMachine):
    """Takes the victims of a lost node for failures of the program."""

    def _charge(self) -> bool:
        if self.round is not None:
            self.round.losses.clear()
        return super()._charge()


class TellsWrongPlace(RunMachine):
    """Answers a node that has missed its place with that of the first node."""

    def _tell(self, nodes: tuple[str, ...], message: Message) -> None:
        if (
            isinstance(message, Sealed) and not message.facts and self.round is not None
        ):  # news goes with the first word
            message = Sealed(message.ask, next(iter(self.round.places.values())))
        super()._tell(nodes, message)


class NeverSaves(RunMachine):
    """Does not write down what it has decided."""

    def handle(self, event: RunEvent, now: float) -> list[RunEffect]:
        return [effect for effect in super().handle(event, now) if not isinstance(effect, Save)]


class ForgetsTheEnd(RunMachine):
    """Reads its record but not that the run was closed."""

    def _restore(self, record: RunRecord, now: float) -> None:
        super()._restore(record, now)
        if self.closed is not None:
            self.closed = None
            self.stage = Stage.GATHERING


class IgnoresMax(RunMachine):
    """Seals with everybody who is there."""

    def _seal(self, now: float) -> None:
        settings = self.settings
        assert settings is not None
        self.settings = type(settings)(settings.min_nodes, 1000, settings.max_restarts)
        super()._seal(now)
        self.settings = settings


class SpinsWhileHeldUp(RunMachine):
    """Asks to be woken for a last call that cannot end yet."""

    def wakeup(self) -> float | None:
        if self.stage is Stage.GATHERING and (ends := self.last_call_ends()) is not None:
            return ends
        return super().wakeup()


class KeepsTheGrace(RunMachine):
    """Gives a node whose connection broke up, although it has come back on another."""

    def _on_join(self, event: NodeJoined, now: float) -> None:
        node = self.nodes.get(event.join.spec.node)
        before = (node.dropped, node.expires_at) if node is not None else (None, 0.0)
        super()._on_join(event, now)
        if node is not None and before[0] is not None:
            self.roster.drop(node, *before)


#: Each machine with the checks that may notice.
PLANTED: list[tuple[type[RunMachine], tuple[str, ...]]] = [
    (SealsTooEarly, ("no old worker beside a new round", "the machine's own check", "one round at a time")),
    (NeverExpires, ("liveness",)),
    (ReusesNumbers, ("a round number is used once", "round numbers grow")),
    (ChargesAgain, ("a round is charged once", "a crash loop is a loop")),
    (ChargesVictims, ("a lost node is not charged",)),
    (TellsWrongPlace, ("one membership per round",)),
    (NeverSaves, ("a round number is used once", "round numbers grow", "the budget is kept", "closed is final")),
    (ForgetsTheEnd, ("closed is final", "survivors keep their order")),
    (IgnoresMax, ("min and max are kept",)),
    (SpinsWhileHeldUp, ("no machine spins",)),
    (KeepsTheGrace, ("only dropped nodes are dropped",)),
]


def first_failure(planted: str = "") -> Outcome | None:
    outcomes = (run_seed(seed, *NODES) for seed in (KEEN.get(planted, 0), *range(SEEDS_MAX)))
    return next((outcome for outcome in outcomes if outcome.check is not None), None)


@pytest.mark.parametrize(("machine", "checks"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_of_the_run_is_caught(
    monkeypatch: pytest.MonkeyPatch, machine: type[RunMachine], checks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(coordinator_machine, "RunMachine", machine)

    outcome = first_failure(machine.__name__)

    assert outcome is not None, f"{SEEDS_MAX} seeds did not notice: {machine.__doc__}"
    assert outcome.check in checks, outcome


def test_survivors_that_lose_their_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    arrange = rounds_module.arrange
    monkeypatch.setattr(rounds_module, "arrange", lambda _, chosen: arrange([], chosen[::-1]))

    outcome = first_failure()

    assert outcome is not None
    assert outcome.check == "survivors keep their order"


class TakesAnyRound(MemberMachine):
    """Takes every place that it is told, whichever ask it answers."""

    def _on_sealed(self, message: Sealed) -> None:
        super()._on_sealed(type(message)(self._ask, message.place))


class GoesOnWaiting(MemberMachine):
    """Does not understand that its ask was answered by a round that is over."""

    def _on_message(self, message: object) -> None:
        super()._on_message(type(message)() if type(message).__name__ == "Resend" else message)  # type: ignore[arg-type]


class DeafToTheEnd(MemberMachine):
    """Goes on waiting when its round breaks."""

    def _on_broken(self, message: object) -> None:
        assert self.state in State


@pytest.mark.parametrize(
    ("machine", "checks"),
    [
        (TakesAnyRound, ("a round that was left is not entered again", "no old worker beside a new round")),
        (GoesOnWaiting, ("no old worker beside a new round", "few messages are sent")),
        (DeafToTheEnd, ("liveness",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_of_the_member_is_caught(
    monkeypatch: pytest.MonkeyPatch, machine: type[MemberMachine], checks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(member_module, "MemberMachine", machine)

    outcome = first_failure(machine.__name__)

    assert outcome is not None, f"{SEEDS_MAX} seeds did not notice: {machine.__doc__}"
    assert outcome.check in checks, outcome


class AsksBesideItsWorkers(AgentMachine):
    """Asks for the next round without stopping the workers of the last one."""

    def _on_broken(self, event: RoundBroken) -> None:
        if self.stage is AgentStage.RUNNING and not self._in_process:
            self._ask()
        else:
            super()._on_broken(event)


class DropsWhatComesBeforeTheStart(AgentMachine):
    """Does not listen while a round is agreed and its workers are not started yet."""

    def handle(self, event: AgentEvent, now: float) -> list[AgentEffect]:
        if self.stage is AgentStage.SEATED and isinstance(event, RoundBroken):
            return []
        return super().handle(event, now)


class FinishesOnce(AgentMachine):
    """Does not tell the next round that its work was finished in the last one."""

    def _on_sealed(self, place: Place) -> None:
        super()._on_sealed(place)
        self._out = [effect for effect in self._out if not (isinstance(effect, Finish) and self.place is place)]


class NeverRegroups(AgentMachine):
    """Lets workers that outlive a round go on without the next one."""

    def _on_broken(self, event: RoundBroken) -> None:
        if not self._in_process:
            super()._on_broken(event)


class WaitsForever(AgentMachine):
    """Does not end where no round comes about."""

    def _on_unanswered(self, event: AskFailed | RunEnded) -> None:
        pass


@pytest.mark.parametrize(
    ("machine", "checks"),
    [
        (AsksBesideItsWorkers, ("one round at a time", "no old worker beside a new round")),
        (DropsWhatComesBeforeTheStart, ("liveness", "no old worker beside a new round")),
        (FinishesOnce, ("liveness",)),
        (NeverRegroups, ("liveness",)),
        (WaitsForever, ("liveness",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_of_the_agent_is_caught(
    monkeypatch: pytest.MonkeyPatch, machine: type[AgentMachine], checks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(nodes_module, "AgentMachine", machine)

    outcome = first_failure(machine.__name__)

    assert outcome is not None, f"{SEEDS_MAX} seeds did not notice: {machine.__doc__}"
    assert outcome.check in checks, outcome


def test_a_failure_is_shrunk_and_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_machine, "RunMachine", NeverExpires)
    outcome = first_failure()
    assert outcome is not None
    assert outcome.check is not None
    scenario = make_scenario(outcome.seed, *NODES)

    keep = shrink(scenario, outcome.check, runs_max=200)

    small = apply(scenario, keep)
    assert len(small.faults) <= 2
    assert len(small.nodes) <= 2
    assert simulate(small).check == outcome.check


def test_the_command_line_tells_the_story_of_a_failure_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coordinator_machine, "RunMachine", ReusesNumbers)

    status = main(["--seeds", "3", "--nodes", "5:9", "--jobs", "1"])

    printed, told = capsys.readouterr()
    assert status == 1
    assert " failed: a round number is used once" in told, "a seed that fails is named at once"
    assert " failed: a round number is used once" in printed
    [replay] = [line for line in printed.splitlines() if line.startswith("replay it shrunk: ")]
    assert main(replay.split("holdfast.sim ")[1].split()) == 1
    assert "failed: a round number is used once" in capsys.readouterr().out
