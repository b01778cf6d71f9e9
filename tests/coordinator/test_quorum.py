"""Which survivors of a round may go on: each rule alone, and what must not count."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.coordinator.messages import Ballot, Memory, NodeSpec, Phase, Place, Pledge, RoundId, Term
from holdfast.coordinator.quorum import ANY, Votes, has_quorum
from holdfast.coordinator.standing import TRIED_S, Standing
from holdfast.coordinator.state import Node, Round

FOUR = ("a", "b", "c", "d")
ANY_SIZE = (1, 4)
PLACE = Place(RoundId(1, "l"), 0, 1, 0, 1, 0, 1, "10.0.0.1", 1000)


def ballot(*names: str, tie: str = "a", launch: str = "l", number: int = 1, **changes: object) -> Ballot:
    return Ballot(RoundId(number, launch), 1, len(names), tie, names, launches=(launch,), **changes)  # type: ignore[arg-type]


def goes_on(votes: Votes, limits: tuple[int, int] = ANY_SIZE, rule: str = "majority", **changes: object) -> bool:
    counts = ballot(*FOUR, **changes)
    return has_quorum([counts], {counts.round: FOUR}, votes, limits, rule)


@pytest.mark.parametrize(
    ("votes", "enough"),
    [
        (Votes(["b", "c", "d"]), True),
        (Votes(["a", "b"]), True),
        (Votes(["b", "c"]), False),
        (Votes(["b", "c", "x"]), False),
        (Votes(["b"], dead=["a", "c", "d"], sure=True), True),
        (Votes(["b"], dead=["a", "c", "d"]), False),
        (Votes(["b"], dead=["a", "c"], sure=True), False),
        (Votes([], dead=FOUR, sure=True), False),
        (Votes(["b", "x"], replaced=["a"], dead=["c", "d"], tried=True), True),
        (Votes(["b", "x"], replaced=["a"], dead=["c", "d"]), False),
        (Votes(["x", "y", "z"], replaced=["a", "b", "c"]), False),
        (Votes(["x", "y", "z"], replaced=FOUR), True),
    ],
)
def test_what_a_quorum_is(votes: Votes, enough: bool) -> None:
    assert goes_on(votes) is enough


def test_any_min_nodes_go_on_where_the_others_cannot_be_as_many() -> None:
    assert goes_on(Votes(["d", "x", "y"]), (3, 4))
    assert not goes_on(Votes(["d", "x"]), (3, 4))
    assert not goes_on(Votes(["d", "x"]), (2, 4))
    assert not goes_on(Votes(["d", "x", "y"]), (3, 4), spares=2), "two more could be a round with the other three"
    assert goes_on(Votes(["d", "x", "y", "z"]), (1, 4)), "as many as there can be are here"


def test_all_survivors_go_on_if_the_user_says_so() -> None:
    assert goes_on(Votes(["d"]), rule=ANY)


def test_a_coordinator_without_memory_needs_the_quorum_of_what_a_member_tells() -> None:
    standing = Standing("new")
    standing.hear("d", Pledge(Term(1, "old"), (ballot(*FOUR, mine=True, firm=True),)), 0.0)

    assert standing.poll(["d", "x"], 0.0) is None
    assert not standing.may_seal(["d", "x"], 0.0)


def test_a_launch_that_has_begun_does_not_pass_over_a_larger_one_when_its_own_round_is_firm() -> None:
    standing = Standing("new")
    own = ballot("x", tie="x", launch="m", number=2, firm=True)
    standing.hear("x", Pledge(Term(3, "new"), (msgspec.structs.replace(own, mine=True),)), 0.0)
    standing.hear("d", Pledge(Term(1, "old"), (ballot(*FOUR, mine=True, firm=True),)), 0.0)

    assert {each.launches for each in standing.ballots} == {("l",), ("m",)}
    assert standing.poll(["d", "x"], 0.0) is None


def test_what_an_agent_before_this_one_knew_counts_and_refusals_only_after_a_while() -> None:
    standing = Standing("new")
    standing.recall(Memory(("a",), Term(1, "old"), (ballot("a", "b", firm=True),)), 0.0)
    standing.hear("a2", Pledge(Term(1, "old"), (ballot("a", "b", firm=True),), replaces=("a",)), 0.0)
    assert standing.poll(["a2"], 0.0) is None

    standing.leave("b")

    assert standing.poll(["a2"], 0.0) is None, "one that carries the run may be about to ask here"
    assert standing.poll(["a2"], TRIED_S) is not None


def test_sure_deaths_that_were_found_in_time_count_however_long_workers_take_to_stop() -> None:
    standing = Standing("new")
    standing.sure_until = 5.0
    standing.hear("b", Pledge(Term(1, "old"), (ballot("a", "b", mine=True, firm=True),), sure=True), 0.0)
    assert standing.awaits_proof(["b"], 0.0)

    standing.leave("a")

    assert not standing.awaits_proof(["b"], 1.0)
    assert standing.poll(["b"], 600.0) is not None


def sealed_by(standing: Standing, *names: str, number: int = 1) -> Round:
    """Let a coordinator seal a round of these nodes."""
    round_ = Round(RoundId(number, "l"), dict.fromkeys(names, PLACE), len(names), 0.0, {})
    nodes = [Node(NodeSpec(name, name, "trainer", 1, 0), "", 0, 1, Phase.WAITING, 1, 0.0) for name in names]
    standing.seal(round_.id, nodes, {name: f"{name}:1" for name in names})
    return round_


def grown(standing: Standing) -> Round:
    """Let one node that has trained alone be joined by two others, and all three accept their round."""
    alone = sealed_by(standing, "a")
    standing.accept("a", alone)
    standing.step("a", 7, alone)
    standing.step("a", 8, alone)
    together = sealed_by(standing, "a", "b", "c", number=2)
    for name in together.places:
        standing.accept(name, together)
    return together


def test_the_round_with_the_state_counts_until_a_step_is_made_in_the_next_one() -> None:
    """Else those who joined last could go on, without a state, while the one that has it is cut off."""
    standing = Standing("lead")
    together = grown(standing)
    assert [each.size for each in standing.ballots] == [1, 3]
    assert standing.poll(["b", "c"], 0.0) is None

    assert standing.poll(["a", "c"], 0.0) is not None, "one that has the state is among them"
    standing.poll_again()

    standing.step("b", 0, together)
    assert standing.step("b", 1, together)

    assert [each.size for each in standing.ballots] == [3]
    assert standing.poll(["b", "c"], 0.0) is not None


def test_steps_that_a_member_makes_in_process_without_the_others_do_not_count() -> None:
    standing = Standing("lead")
    standing.in_process = True
    together = grown(standing)

    for name, steps in (("a", 8), ("b", 0), ("c", 0), ("a", 9), ("b", 1)):
        assert not standing.step(name, steps, together)
    assert standing.poll(["b", "c"], 0.0) is None

    assert standing.step("c", 1, together)


def test_workers_that_were_started_anew_count_their_steps_from_the_beginning() -> None:
    standing = Standing("lead")
    together = grown(standing)

    assert not standing.step("a", 8, together), "told before the new workers were started"
    assert not standing.step("a", 0, together)
    assert standing.step("a", 1, together)


def test_where_no_steps_are_counted_a_round_that_all_have_accepted_counts_alone() -> None:
    standing = Standing("lead")
    alone = sealed_by(standing, "a")
    standing.accept("a", alone)
    together = sealed_by(standing, "a", "b", "c", number=2)
    for name in together.places:
        standing.step(name, 0, together)
        standing.accept(name, together)

    assert [each.size for each in standing.ballots] == [3]


def test_as_many_as_there_can_be_go_on_only_with_a_member_of_the_last_round() -> None:
    """One that was started later may stand by on this side of a cut, and the member train on the other."""
    assert goes_on(Votes(["d", "x", "y", "z"]), (1, 4))
    assert not goes_on(Votes(["w", "x", "y", "z"]), (1, 4))


def test_nodes_that_were_there_once_are_counted_among_those_that_may_come_back() -> None:
    standing = Standing("lead")
    sealed_by(standing, "a", "b")
    assert standing.see_spares(RoundId(1, "l"), 1) == 1

    sealed_by(standing, "a", "c", number=2)

    assert standing.ballots[-1].spares == 1
