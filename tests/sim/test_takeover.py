"""The coordinator moves under faults: nothing is wrong, and bugs that are planted in the election are caught."""

import pytest

from holdfast.coordinator import run as run_module
from holdfast.coordinator.messages import Elect, Memory, Pledge, Term
from holdfast.coordinator.standing import Standing
from holdfast.rendezvous import seeking as member_module
from holdfast.rendezvous.allegiance import Allegiance
from holdfast.rendezvous.seeking import Seeker
from holdfast.sim.batch import run_seeds, run_takeover
from holdfast.sim.simulation import Outcome
from holdfast.sim.takeover import TakeoverNode, TakeoverSimulation
from holdfast.sim.takeover_faults import make_takeover

SEEDS_MAX = 300
NODES = (2, 7)


@pytest.mark.parametrize("start", range(0, 60, 15))
def test_nothing_is_wrong_while_the_coordinator_moves(start: int) -> None:
    summary = run_seeds(range(start, start + 15), *NODES, jobs=1, takeover=True)

    assert summary.failures == []
    assert summary.rounds > 30


def test_an_agent_that_was_started_again_while_cut_off_begins_no_run_of_its_own() -> None:
    """It was a member of the run, which goes on without it; a node that lost the others looks for them there."""
    assert run_takeover(1413, *NODES).check is None


@pytest.mark.parametrize("seed", [346, 13529, 16405, 21675, 22934, 30422, 36790, 38639, 54534])
def test_what_was_wrong_once_is_not_wrong_again(seed: int) -> None:
    """Two groups trained, or nodes did not find each other: a spare, a pause, a cut before the first step, a drain.

    30422: a round was sealed in a term that its members had left for the next one of the same coordinator.
    36790, 54534: agents that were in no round sent nodes to each other, and a coordinator asked them without a pause.
    38639: a spare found the agent that takes over before that agent's own node did, and began a run of its own.
    """
    assert run_takeover(seed, *NODES).check is None


@pytest.mark.parametrize("seed", [36261, 50898])
def test_what_cannot_be_otherwise_is_not_held_against_the_nodes(seed: int) -> None:
    """36261: all that were in the last term are dead. 50898: a node was paused until a moment before a cut ends."""
    assert run_takeover(seed, *NODES).check is None


def test_a_simulation_ends_at_a_limit_that_is_known() -> None:
    """A node joined later than the round that an agent remembers, and all of that round are dead; then it is paused."""
    simulation = TakeoverSimulation(make_takeover(40390, *NODES), story=True)

    assert simulation.run().check is None
    assert simulation.story is not None
    assert "n0.2 cannot know of n2" in simulation.story.lines[-1]


def test_an_agent_that_has_lost_its_disk_begins_a_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the rules notice: so they would notice it of one that has its disk."""
    monkeypatch.setattr(TakeoverNode, "keep", lambda self, succession: None)
    monkeypatch.setattr(Seeker, "_remember", lambda self: None)

    assert run_takeover(1413, *NODES).check is not None


class VotesTwice(Allegiance):
    """Does not remember its promises, and so gives them again."""

    def promise(self, elect: Elect) -> Term:
        return elect.term


class ForgetsItsRounds(Allegiance):
    """Does not tell the next coordinator which rounds there were: what only the last one knew is lost with it."""

    def pledge(self, now: float, sure_s: float) -> Pledge:
        pledge = super().pledge(now, sure_s)
        return Pledge(pledge.term, (), pledge.sure, pledge.gone, pledge.spent)


class SealsAlways(Standing):
    """Seals although it was deposed, or has no quorum."""

    def may_seal(self, chosen: object, now: float) -> bool:
        return True


class CountsTheSilent(Standing):
    """Takes nodes that fell silent for dead."""

    def _is_quorum(self, votes: object, now: float) -> bool:
        return True


class StartsFromNothing(Allegiance):
    """Does not know what the agent before it has promised, though that is on disk."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__()


#: Each with the checks that may notice.
MEMBERS = [
    (VotesTwice, ("a promise is given once in a term", "a term has one coordinator")),
    (
        ForgetsItsRounds,
        ("never two halves", "what was trained is not forgotten", "a term has one coordinator", "liveness"),
    ),
    (StartsFromNothing, ("a promise is given once in a term", "liveness")),
]
COORDINATORS = [
    (SealsAlways, ("never two halves", "a term has one coordinator", "a coordinator that was deposed seals nothing")),
    (CountsTheSilent, ("never two halves", "a term has one coordinator")),
]


#: A vote that is given twice is seldom asked for: the search for it begins shortly before a seed that does.
STARTS = {VotesTwice: 235}


def first_failure(start: int = 0) -> Outcome | None:
    outcomes = (run_takeover(seed, *NODES) for seed in range(start, start + SEEDS_MAX))
    return next((outcome for outcome in outcomes if outcome.check is not None), None)


@pytest.mark.parametrize(("planted", "checks"), MEMBERS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_of_the_voter_is_caught(
    monkeypatch: pytest.MonkeyPatch, planted: type[Allegiance], checks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(member_module, "Allegiance", planted)

    outcome = first_failure(STARTS.get(planted, 0))

    assert outcome is not None, f"{SEEDS_MAX} seeds did not notice: {planted.__doc__}"
    assert outcome.check in checks, outcome


@pytest.mark.parametrize(("planted", "checks"), COORDINATORS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_of_the_candidate_is_caught(
    monkeypatch: pytest.MonkeyPatch, planted: type[Standing], checks: tuple[str, ...]
) -> None:
    monkeypatch.setattr(run_module, "Standing", planted)

    outcome = first_failure()

    assert outcome is not None, f"{SEEDS_MAX} seeds did not notice: {planted.__doc__}"
    assert outcome.check in checks, outcome
