"""The coordinator's machine: which connection speaks for which node."""

from typing import Any

import msgspec

from holdfast.coordinator.machine import (
    AskOther,
    Connected,
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorMachine,
    Disconnected,
    Follow,
    Found,
    Lead,
    Received,
    SaveRun,
    Send,
    Stray,
)
from holdfast.coordinator.messages import (
    Ack,
    Ballot,
    Beat,
    Broken,
    Close,
    Closed,
    Elect,
    Heir,
    Join,
    Memory,
    NodeSpec,
    Out,
    Phase,
    Pledge,
    Promise,
    Query,
    Rejected,
    Report,
    Resend,
    RoundId,
    RunSettings,
    Sealed,
    Seen,
    Term,
)
from holdfast.coordinator.takeover import SEEK_S
from holdfast.machine import Tick
from holdfast.wire.frames import Message


class Coordinator:
    """A machine and a clock that only moves when told."""

    def __init__(self) -> None:
        nonces = iter(range(1000))
        self.machine = CoordinatorMachine(lambda: f"nonce-{next(nonces)}")
        self.now = 100.0

    def tell(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        effects = self.machine.handle(event, self.now)
        self.machine.check()
        return effects

    def connect(self, peer: str) -> None:
        assert self.tell(Connected(peer, "10.0.0.9", "10.0.0.1")) == []

    def say(self, peer: str, message: Message) -> list[CoordinatorEffect]:
        return self.tell(Received(peer, message))

    def pass_time(self, seconds: float) -> list[CoordinatorEffect]:
        self.now += seconds
        return self.tell(Tick())


def join(node: str, seq: int = 1, run: str = "job", least: int = 1, most: int = 1) -> Join:
    spec = NodeSpec(node, f"host-{node}", "trainer", 1, 1000)
    return Join(seq, run, spec, RunSettings(least, most), Phase.WAITING, 1)


def sent(effects: list[CoordinatorEffect], kind: type) -> dict[Any, Any]:
    sends = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]
    return {peer: send.message for send in sends for peer in send.peers}


def test_a_join_is_answered_on_the_connection_that_it_came_by() -> None:
    coordinator = Coordinator()
    coordinator.connect("x")

    effects = coordinator.say("x", join("a"))

    assert sent(effects, Sealed)["x"].place.group_rank == 0
    assert [effect.run for effect in effects if isinstance(effect, SaveRun)] == ["job"]


def test_a_newer_connection_takes_over_and_the_end_of_the_older_means_nothing() -> None:
    coordinator = Coordinator()
    coordinator.connect("old")
    coordinator.say("old", join("a", seq=1))
    coordinator.connect("new")
    coordinator.say("new", join("a", seq=2))

    coordinator.tell(Disconnected("old", "reset by peer"))
    coordinator.pass_time(1.0)

    assert "a" in coordinator.machine.runs["job"].nodes
    assert sent(coordinator.say("new", Beat(3, Phase.WAITING, 1, None)), Ack).keys() == {"new"}


def test_a_join_that_comes_late_on_an_older_connection_does_not_take_over() -> None:
    coordinator = Coordinator()
    coordinator.connect("old")
    coordinator.connect("new")
    coordinator.say("new", join("a", seq=2))

    coordinator.say("old", join("a", seq=1))
    coordinator.tell(Disconnected("old", "reset by peer"))
    coordinator.pass_time(1.0)

    assert "a" in coordinator.machine.runs["job"].nodes
    assert sent(coordinator.say("new", Beat(3, Phase.WAITING, 1, None)), Ack).keys() == {"new"}


def test_a_connection_that_ends_costs_its_node_the_round_after_a_moment() -> None:
    coordinator = Coordinator()
    for node in ("a", "b"):
        coordinator.connect(node)
        coordinator.say(node, join(node, most=2, least=2))

    coordinator.tell(Disconnected("b", "reset by peer"))

    assert sent(coordinator.pass_time(0.2), Broken)["a"].reason == "host-b was lost: reset by peer"


def test_a_connection_speaks_for_one_node_only() -> None:
    coordinator = Coordinator()
    coordinator.connect("x")
    coordinator.say("x", join("a", most=9, least=9))

    assert sent(coordinator.say("x", join("b", seq=2, most=9, least=9)), Rejected).keys() == {"x"}


def test_a_run_id_must_be_usable_as_a_key() -> None:
    coordinator = Coordinator()
    coordinator.connect("x")

    assert "cannot be a run id" in sent(coordinator.say("x", join("a", run="a/b")), Rejected)["x"].reason
    assert coordinator.machine.runs == {}


def test_a_node_that_speaks_before_joining_is_asked_to_join() -> None:
    coordinator = Coordinator()
    coordinator.connect("x")

    assert sent(coordinator.say("x", Beat(1, Phase.WAITING, 1, None)), Resend).keys() == {"x"}


def test_anybody_may_ask_how_a_run_stands() -> None:
    coordinator = Coordinator()
    for peer in ("x", "watcher"):
        coordinator.connect(peer)
    coordinator.say("x", join("a"))

    [run] = sent(coordinator.say("watcher", Query("job")), Report)["watcher"].runs

    assert run["sentence"] == "round 1: 1 node"
    assert sent(coordinator.say("watcher", Query("other")), Report)["watcher"].runs == []


def test_a_close_is_told_to_all_nodes() -> None:
    coordinator = Coordinator()
    for node in ("a", "b"):
        coordinator.connect(node)
        coordinator.say(node, join(node, most=3, least=3))

    effects = coordinator.say("a", Close(2, "enough"))

    assert sent(effects, Closed).keys() == {"a", "b"}


def test_runs_do_not_touch_each_other() -> None:
    coordinator = Coordinator()
    for run in ("one", "two"):
        coordinator.connect(run)
        effects = coordinator.say(run, join("a", run=run))
        assert sent(effects, Sealed)[run].place.round.number == 1

    coordinator.say("one", Close(2, "enough"))

    assert coordinator.machine.runs["two"].closed is None


def test_workers_are_taken_in_where_the_coordinator_of_their_agents_has_come_back_to() -> None:
    """It led, followed another one for a moment, and leads again: what it then told the workers is void."""
    coordinator = Coordinator()
    workers = RunSettings(1, 1, guardian="job")
    agent, worker = (
        join("a"),
        Join(1, "job.workers", NodeSpec("w", "host-w", "trainer", 1, 1), workers, Phase.WAITING, 1),
    )
    for peer in ("x", "y", "z"):
        coordinator.connect(peer)
    coordinator.say("x", agent)
    coordinator.say("y", worker)

    assert sent(coordinator.tell(Follow("job", "10.0.0.2:1")), Out).keys() == {"x", "y"}
    coordinator.tell(Lead("job"))
    coordinator.say("z", msgspec.structs.replace(worker, seq=2))

    assert not sent(coordinator.say("z", Beat(3, Phase.WAITING, 1, None)), Out)


def test_a_node_that_was_in_no_round_begins_none_at_an_agent_that_takes_over() -> None:
    """It joins before the agent's own node does, and the rounds that the agent knows of count all the same."""
    coordinator = Coordinator()
    settings = RunSettings(1, 2, takeover=True, expected=1)
    spare = msgspec.structs.replace(join("c"), settings=settings, pledge=Pledge())
    ballot = Ballot(RoundId(1, "n"), 1, 2, "a", ("a", "b"), firm=True, spares=1)
    coordinator.connect("x")

    coordinator.tell(Lead("job", Memory(("b",), Term(1, "before"), (ballot,), (Heir("b", "10.0.0.2:1"),))))
    effects = coordinator.say("x", spare)
    coordinator.now += 60.0
    effects += coordinator.tell(Tick())

    assert not sent(effects, Sealed)


def taken_over() -> Coordinator:
    """Return a coordinator that took over with one node of the two in the round before."""
    coordinator = Coordinator()
    ballot = Ballot(RoundId(1, "n"), 1, 2, "a", ("a", "b"), firm=True)
    heirs = (Heir("a", "10.0.0.1:1"), Heir("b", "10.0.0.2:1"))
    coordinator.tell(Lead("job", Memory(("b",), Term(1, "before"), (ballot,), heirs)))
    coordinator.connect("x")
    member = msgspec.structs.replace(join("b"), settings=RunSettings(1, 2, takeover=True), pledge=Pledge())
    coordinator.say("x", member)
    return coordinator


def test_agents_that_name_each_other_are_asked_once_between_two_looks() -> None:
    """Neither of them carries the coordinator; to follow what they say at once would never end."""
    coordinator = taken_over()
    named = {"10.0.0.1:1": "10.0.0.3:1", "10.0.0.3:1": "10.0.0.1:1"}
    asked: list[str] = []
    for _ in range(3):
        coordinator.now += SEEK_S
        effects = coordinator.tell(Tick())
        while asks := [each.address for each in effects if isinstance(each, AskOther)]:
            asked += asks
            assert len(asked) < 20
            effects = [
                effect for each in asks for effect in coordinator.tell(Found(each, Seen("job", None, named[each])))
            ]

    assert asked == ["10.0.0.1:1", "10.0.0.3:1"] * 3


def test_an_agent_that_was_sent_away_names_that_place_no_more() -> None:
    coordinator = Coordinator()
    for peer in ("x", "y", "z"):
        coordinator.connect(peer)
    coordinator.tell(Follow("job", "10.0.0.2:1"))
    assert sent(coordinator.say("x", join("b")), Out)["x"].address == "10.0.0.2:1"

    coordinator.tell(Stray("job", "10.0.0.3:1"))
    assert sent(coordinator.say("y", join("c")), Out)["y"].address == "10.0.0.2:1"
    coordinator.tell(Stray("job", "10.0.0.2:1"))
    assert sent(coordinator.say("z", join("d")), Out)["z"].address == ""


def test_workers_that_come_back_before_their_agents_get_their_round_when_these_are_back() -> None:
    """Only a quorum of the agents lets a round of workers be sealed, whichever of them comes first."""
    coordinator = Coordinator()
    workers = RunSettings(1, 1, guardian="job")
    worker = Join(1, "job.workers", NodeSpec("w", "host-w", "trainer", 1, 1), workers, Phase.WAITING, 1)
    agent = msgspec.structs.replace(join("a"), settings=RunSettings(1, 1, takeover=True), pledge=Pledge())
    for peer in ("x", "y"):
        coordinator.connect(peer)
    assert not sent(coordinator.say("y", worker), Sealed)

    asked = sent(coordinator.say("x", agent), Elect)["x"]
    effects = coordinator.say("x", Promise(2, asked.poll, asked.term))

    assert sent(effects, Sealed).keys() == {"y"}
