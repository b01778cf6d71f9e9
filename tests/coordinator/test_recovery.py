"""The return of a round's members after a restart of the coordinator."""

from holdfast.coordinator.messages import NodeSpec, Phase, Place, RoundId
from holdfast.coordinator.ranks import Seat
from holdfast.coordinator.state import Node, Recovery

ROUND = RoundId(7, "n")
SEATS = [Seat("a", "ha"), Seat("b", "hb"), Seat("c", "hc")]


def recovery(*seats: Seat, size: int = 3) -> Recovery:
    return Recovery(ROUND, size, seats, now=100.0, recovery_s=10.0)


def take_back(found: Recovery, name: str, rank: int, coordinator_rank: int = -1) -> None:
    node = Node(NodeSpec(name, f"h{name}", "default", 1, 0), "", 1, 1, Phase.RUNNING, 1, 200.0)
    place = Place(ROUND, rank, 3, rank, 3, rank, 3, "10.0.0.1", 1, coordinator_rank=coordinator_rank)
    found.take_back(node, place)


def test_it_is_over_when_all_are_back_or_their_time_is_up() -> None:
    found = recovery(*SEATS)
    take_back(found, "a", 0)
    take_back(found, "b", 1)

    assert not found.is_over(109.9)
    assert found.is_over(110.0)
    take_back(found, "c", 2)
    assert found.is_over(101.0)
    assert found.conclude() is None


def test_who_has_not_come_back_is_named_where_names_are_known() -> None:
    found = recovery(*SEATS)
    take_back(found, "b", 1)

    assert found.conclude() == "ha and hc"
    assert found.round.seats() == SEATS


def test_a_member_that_was_given_up_before_the_record_was_written_is_a_newcomer() -> None:
    """Behind the others it would stand apart from the nodes of its host."""
    found = recovery(SEATS[0], SEATS[2], size=2)
    take_back(found, "b", 1)
    take_back(found, "c", 2)

    assert not found.is_over(101.0)
    take_back(found, "a", 0)
    assert found.is_over(101.0)
    assert found.conclude() is None
    assert list(found.round.places) == ["a", "c"]
    assert found.round.seats() == [SEATS[0], SEATS[2]]


def test_members_that_are_learned_are_counted_and_put_in_rank_order() -> None:
    found = recovery()
    take_back(found, "c", 2)
    take_back(found, "a", 0)

    assert found.conclude() == "1 of 3 nodes"
    assert list(found.round.places) == ["a", "c"]
    assert found.round.seats() == [SEATS[0], SEATS[2]]


def test_the_agent_that_died_with_the_coordinator_is_not_waited_for() -> None:
    found = recovery()
    take_back(found, "b", 1, coordinator_rank=0)
    assert not found.is_over(101.0)

    take_back(found, "c", 2, coordinator_rank=0)

    assert found.is_over(101.0)


def test_a_coordinator_that_came_back_with_its_agent_is_waited_for_in_full() -> None:
    found = recovery()
    take_back(found, "a", 0, coordinator_rank=0)
    take_back(found, "b", 1, coordinator_rank=0)

    assert not found.is_over(101.0)
