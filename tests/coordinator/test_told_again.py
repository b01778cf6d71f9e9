"""What a node is told again: each pair of what it believes and what is so."""

import pytest

from holdfast.coordinator.messages import Beat, Broken, NodeSpec, Phase, Place, Resend, RoundId, Sealed
from holdfast.coordinator.run import after_beat, left_behind
from holdfast.coordinator.state import Node, Round

ROUND, OLDER, UNKNOWN = RoundId(3, "c"), RoundId(2, "b"), RoundId(4, "x")
PLACE = Place(ROUND, 0, 1, 0, 1, 0, 1, "10.0.0.1", 1)


def node(phase: Phase, ask: int = 5, sealed_ask: int = 5) -> Node:
    spec = NodeSpec("a", "ha", "default", 1, 0)
    return Node(spec, "10.0.0.1", 1, 1, phase, ask, 100.0, sealed_ask=sealed_ask)


def round_of(*, broken: str | None = None) -> Round:
    return Round(ROUND, {"a": PLACE}, 1, 0.0, {"a": "ha"}, broken=broken)


def beat(phase: Phase, ask: int = 5, round_id: RoundId | None = ROUND) -> Beat:
    return Beat(2, phase, ask, round_id)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.DONE])
def test_who_believes_what_is_so_is_told_nothing(phase: Phase) -> None:
    assert after_beat(node(phase), beat(phase), round_of()) is None
    assert after_beat(node(Phase.WAITING, ask=6), beat(Phase.WAITING, ask=6), round_of()) is None


def test_a_node_that_still_waits_is_told_its_place_again() -> None:
    assert after_beat(node(Phase.RUNNING), beat(Phase.WAITING), round_of()) == Sealed(5, PLACE)


def test_an_ask_that_was_answered_by_a_round_that_is_over_is_void() -> None:
    assert after_beat(node(Phase.STOPPING), beat(Phase.WAITING), round_of(broken="x")) == Resend(void=5)


def test_a_node_that_has_missed_the_end_of_its_round_is_told_why_it_broke() -> None:
    known = round_of(broken="hb was lost")

    assert after_beat(node(Phase.STOPPING), beat(Phase.RUNNING), known) == Broken(ROUND, "hb was lost")
    assert after_beat(node(Phase.STOPPING), beat(Phase.STOPPING), known) is None


def test_a_node_of_another_round_is_told_that_it_is_over() -> None:
    told = after_beat(node(Phase.STOPPING), beat(Phase.RUNNING, round_id=OLDER), round_of())

    assert told == Broken(OLDER, "round 2 is over; round 3 went on without this node")
    assert "not known here" in left_behind(UNKNOWN, round_of()).reason
    assert "not known here" in left_behind(UNKNOWN, None).reason


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (node(Phase.WAITING, ask=6), beat(Phase.RUNNING, round_id=OLDER)),
        (node(Phase.RUNNING), beat(Phase.RUNNING, round_id=None)),
        (node(Phase.RUNNING), beat(Phase.DONE)),
        (node(Phase.RUNNING), beat(Phase.WAITING, ask=6)),
    ],
)
def test_where_we_have_missed_something_the_node_is_asked_to_say_all(known: Node, said: Beat) -> None:
    assert after_beat(known, said, round_of()) == Resend()
