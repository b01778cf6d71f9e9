"""Which survivors of a round may go on: each rule alone, and what must not count."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.coordinator.messages import Ballot, Memory, Pledge, RoundId, Term
from holdfast.coordinator.quorum import ANY, Votes, has_quorum
from holdfast.coordinator.standing import TRIED_S, Standing

FOUR = ("a", "b", "c", "d")
ANY_SIZE = (1, 4)


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
