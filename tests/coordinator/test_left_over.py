"""An agent left over from an earlier launch does not mix with a later one that is complete without it."""

from __future__ import annotations

from holdfast.coordinator.admission import LEFT_OVER
from holdfast.coordinator.events import Note, RunEffect, Tell
from holdfast.coordinator.messages import Broken, Phase, Rejected, Sealed
from holdfast.coordinator.state import Stage
from tests.coordinator.test_run import Run

ENDS = Rejected(LEFT_OVER.format(run="job"))


def told(effects: list[RunEffect], kind: type) -> dict[str, object]:
    return {
        name: effect.message
        for effect in effects
        if isinstance(effect, Tell) and isinstance(effect.message, kind)
        for name in effect.nodes
    }


def after_a_crash(least: int = 2, most: int = 2) -> Run:
    """A run whose nodes were a and b in round 2, with one restart used; then its coordinator died, with no record."""
    run = Run(least, most)
    run.ask("a")
    run.ask("b")
    run.now += 4  # where more may come, they are not waited for any longer
    run.beat("a", Phase.WAITING)
    run.fail("b")
    run.ask("a")
    run.ask("b")
    assert run.machine.round is not None
    assert (run.machine.round.id.number, run.machine.restarts_used) == (2, 1)
    run.now += 100
    run.boot(None)
    return run


def test_a_node_that_survived_the_coordinator_goes_on_with_one_that_is_started_again() -> None:
    """The pod of the coordinator's agent was restarted: that is no new launch."""
    run = after_a_crash()
    run.ask("a2", host="host-a")
    run.say_join("b", Phase.RUNNING)
    run.now += 20
    run.beat("b")
    run.beat("a2", Phase.WAITING)
    effects = run.ask("b")

    assert set(told(effects, Sealed)) == {"a2", "b"}
    assert run.machine.restarts_used == 1


def test_one_that_comes_to_a_complete_later_launch_is_turned_away() -> None:
    run = after_a_crash()
    run.ask("a2", host="host-a")
    run.ask("b2", host="host-b")
    assert run.machine.stage is Stage.SEALED

    effects = run.say_join("b", Phase.RUNNING)

    assert told(effects, Rejected) == {"b": ENDS}
    assert not told(effects, Broken)
    assert (run.machine.last_number, run.machine.restarts_used) == (1, 0)


def test_one_that_comes_to_a_smaller_later_launch_joins_it_without_the_restarts_that_it_used() -> None:
    run = after_a_crash(1, 3)
    run.ask("a2", host="host-a")
    run.now += 4
    run.beat("a2", Phase.WAITING)
    assert run.machine.stage is Stage.SEALED

    run.say_join("b", Phase.RUNNING)

    assert set(run.machine.nodes) == {"a2", "b"}
    assert run.machine.restarts_used == 0


def test_one_that_comes_before_the_later_launch_is_complete_ends_when_it_is() -> None:
    run = after_a_crash()
    run.ask("a2", host="host-a")
    run.say_join("b", Phase.RUNNING)  # the coordinator cannot know yet

    effects = run.ask("b2", host="host-b")

    assert told(effects, Rejected) == {"b": ENDS}
    assert set(told(effects, Sealed)) == {"a2", "b2"}
    assert run.machine.restarts_used == 0


def test_one_that_was_taken_in_leaves_its_place_to_the_later_agent_of_its_host() -> None:
    run = after_a_crash()
    run.ask("a2", host="host-a")
    run.say_join("b", Phase.RUNNING)
    run.now += 20
    run.beat("b")
    run.beat("a2", Phase.WAITING)
    run.ask("b")
    assert run.machine.round is not None
    assert set(run.machine.round.places) == {"a2", "b"}

    effects = run.ask("b2", host="host-b")
    assert told(effects, Rejected) == {"b": ENDS}
    assert set(told(effects, Broken)) == {"a2"}
    assert any("left over from an earlier launch" in each.fact.sentence for each in effects if isinstance(each, Note))

    assert set(told(run.ask("a2", host="host-a"), Sealed)) == {"a2", "b2"}
    assert run.machine.restarts_used == 0


def test_one_that_comes_last_is_not_taken_in_at_all() -> None:
    run = after_a_crash()
    run.say_join("a", Phase.RUNNING)  # of the same earlier launch, on a host without a later agent
    run.ask("b2", host="host-b")
    run.ask("c2", host="host-c")

    assert told(run.ask("b"), Rejected) == {"b": ENDS}
    assert set(run.machine.nodes) == {"a", "b2", "c2"}


def test_a_spare_on_another_host_takes_no_place() -> None:
    run = after_a_crash()
    run.ask("a2", host="host-a")
    run.say_join("b", Phase.RUNNING)

    assert not told(run.ask("c", host="host-c"), Rejected)
    assert "b" in run.machine.nodes


def test_members_that_come_back_to_a_coordinator_with_a_record_are_never_left_over() -> None:
    run = Run(2, 2)
    run.ask("a")
    run.ask("b")
    record = run.machine.record()
    run.now += 1
    run.boot(record)
    run.ask("a2", host="host-a")
    run.ask("b2", host="host-b")

    assert not told(run.say_join("b", Phase.RUNNING), Rejected)
    assert not told(run.say_join("a", Phase.RUNNING), Rejected)


def test_spares_that_waited_before_the_coordinator_died_are_no_later_launch() -> None:
    """They were in no round, but they have heard of rounds."""
    run = after_a_crash()
    run.ask("c", host="host-a", known=3)
    run.say_join("a", Phase.RUNNING)
    effects = [*run.ask("d", host="host-b", known=3), *run.say_join("b", Phase.RUNNING)]

    assert not told(effects, Rejected)
    assert run.machine.round is not None
    assert set(run.machine.round.places) == {"a", "b"}
