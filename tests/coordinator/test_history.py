"""The history of a run: every node hears the same facts, once and in order."""

from __future__ import annotations

from typing import Any

from holdfast.coordinator.history import FACTS_KEPT_MAX, FACTS_RETOLD_MAX, FACTS_RIDING_MAX, History
from holdfast.coordinator.machine import Connected, CoordinatorMachine, Received, Send
from holdfast.coordinator.messages import (
    Call,
    Cause,
    Close,
    Fail,
    Join,
    NodeSpec,
    Phase,
    Reply,
    RunSettings,
    ToldFact,
)
from holdfast.machine import Tick
from holdfast.rendezvous.machine import (
    Ask,
    FactHeard,
    Heard,
    LinkUp,
    MemberMachine,
    PeerCall,
    PeerCalled,
    PeerReplied,
    PeerReply,
    Say,
)
from holdfast.wire.frames import Message

EPOCH = 1_000_000.0


def add(history: History, number: int) -> ToldFact:
    return history.add("kind", f"sentence {number}", {}, 20, float(number))


def test_facts_are_numbered_from_one_and_told_again_from_where_a_node_stands() -> None:
    history = History()
    for number in range(1, 6):
        add(history, number)

    assert [told.number for told in history.since(0)] == [1, 2, 3, 4, 5]
    assert [told.sentence for told in history.since(3)] == ["sentence 4", "sentence 5"]
    assert history.since(5) == ()
    assert [told.number for told in history.latest()] == [5 - FACTS_RIDING_MAX + n for n in range(1, 5)]


def test_only_so_many_facts_are_kept_and_only_so_many_told_at_once() -> None:
    history = History()
    for number in range(1, FACTS_KEPT_MAX + 11):
        add(history, number)

    missed = history.since(0)

    assert [told.number for told in missed] == list(range(11, 11 + FACTS_RETOLD_MAX))


def test_a_number_that_a_node_has_heard_is_never_used_again() -> None:
    history = History()
    history.catch_up(7)

    assert add(history, 8).number == 8


class Cluster:
    """A coordinator and members joined by a wire without delay; lost messages are lost on purpose."""

    def __init__(self, *names: str, least: int | None = None) -> None:
        self.now = 100.0
        self.settings = RunSettings(least or len(names), len(names), max_restarts=3)
        self.boot()
        self.members: dict[str, MemberMachine] = {}
        self.heard: dict[str, list[ToldFact]] = {}
        self.asked: list[tuple[str, PeerCalled]] = []
        self.answers: list[tuple[str, PeerReplied]] = []
        self.deaf: set[str] = set()
        for name in names:
            self.add(name)

    def boot(self) -> None:
        nonces = iter(range(1000))
        self.coordinator = CoordinatorMachine(lambda: f"{self.now}-{next(nonces)}", now=self.now, epoch=EPOCH)

    def add(self, name: str) -> None:
        spec = NodeSpec(name, f"host-{name}", "trainer", 1, 1000)
        self.members[name] = MemberMachine("job", spec, self.settings, lambda: 0.5)
        self.heard[name] = []
        self.member(name, Ask(1000, self.now + 600))
        self.connect(name)

    def connect(self, name: str) -> None:
        self.serve(Connected(name, "10.0.0.9", "10.0.0.1"))
        self.member(name, LinkUp())

    def serve(self, event: Any) -> None:
        for effect in self.coordinator.handle(event, self.now):
            if isinstance(effect, Send):
                for peer in effect.peers:
                    if peer not in self.deaf:
                        self.member(str(peer), Heard(effect.message))

    def member(self, name: str, event: Any) -> None:
        for effect in self.members[name].handle(event, self.now):
            match effect:
                case Say():
                    self.serve(Received(name, effect.message))
                case FactHeard():
                    self.heard[name].append(effect.fact)
                case PeerCalled():
                    self.asked.append((name, effect))
                case PeerReplied():
                    self.answers.append((name, effect))
                case _:
                    pass

    def beat(self) -> None:
        """Let every member beat once."""
        self.now += 2.0
        for name in self.members:
            self.member(name, Tick())

    def kinds(self, name: str) -> list[str]:
        return [fact.kind for fact in self.heard[name]]


def test_every_member_hears_of_a_round_the_moment_it_is_sealed() -> None:
    cluster = Cluster("a", "b")

    assert cluster.kinds("a") == cluster.kinds("b") == ["round_sealed"]
    fact = cluster.heard["a"][0]
    assert fact.sentence == "round 1 sealed: 2 nodes, 2 workers; host-a and host-b joined"
    assert fact.time == EPOCH + 100.0
    assert fact.data["joined"] == ["host-a", "host-b"]


def test_a_broken_round_says_why_and_how_long_it_lasted() -> None:
    cluster = Cluster("a", "b")
    cluster.now += 30.0
    place = cluster.members["a"].place
    assert place is not None

    cluster.serve(Received("a", Fail(50, place.round, Cause("rank 0 raised", detail={"kind": "exception"}))))

    broken = cluster.heard["b"][-1]
    assert broken.kind == "round_broken"
    assert broken.data["lasted_s"] == 30.0
    assert broken.data["failure"] == {"kind": "exception"}


def test_a_node_that_missed_some_is_told_with_its_next_beat() -> None:
    cluster = Cluster("a", "b")
    cluster.deaf.add("b")
    place = cluster.members["a"].place
    assert place is not None
    cluster.serve(Received("a", Fail(50, place.round, Cause("rank 0 raised"))))
    cluster.deaf.clear()
    assert cluster.kinds("b") == ["round_sealed"]

    cluster.beat()

    assert cluster.kinds("b")[:2] == ["round_sealed", "round_broken"]
    numbers = [fact.number for fact in cluster.heard["b"]]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_coordinator_without_memory_goes_on_with_the_next_number() -> None:
    cluster = Cluster("a", "b")
    cluster.boot()
    for name in ("a", "b"):
        cluster.connect(name)

    cluster.beat()

    assert [fact.number for fact in cluster.heard["a"]] == [1, 2]
    assert cluster.heard["a"] == cluster.heard["b"]
    assert cluster.kinds("a") == ["round_sealed", "recovered"]


def test_the_end_of_a_run_is_heard_with_its_closing() -> None:
    cluster = Cluster("a", "b")

    cluster.serve(Received("a", Close(60, "enough")))

    assert cluster.kinds("b")[-1] == "run_closed"
    assert cluster.heard["a"] == cluster.heard["b"]


def test_a_question_reaches_every_other_member_and_the_answers_come_back_by_rank() -> None:
    cluster = Cluster("a", "b", "c")

    cluster.member("b", PeerCall(7, "stacks", "why"))
    for name, asked in list(cluster.asked):
        cluster.member(name, PeerReply(asked.caller, asked.call, f"from {name}"))

    assert [(name, asked.topic, asked.body) for name, asked in cluster.asked] == [
        ("a", "stacks", "why"),
        ("c", "stacks", "why"),
    ]
    answers = sorted((answer.group_rank, answer.body) for name, answer in cluster.answers if name == "b")
    assert [body for _, body in answers] == ["from a", "from c"]
    ranks = {name: member.place.group_rank for name, member in cluster.members.items() if member.place}
    assert [rank for rank, _ in answers] == sorted((ranks["a"], ranks["c"]))


def test_who_is_not_in_the_round_can_neither_ask_nor_answer() -> None:
    coordinator = CoordinatorMachine(lambda: "x")
    for name in ("a", "spare"):
        coordinator.handle(Connected(name, "10.0.0.9"), 1.0)
        spec = NodeSpec(name, name, "trainer", 1, 1000)
        join = Join(1, "job", spec, RunSettings(1, 1), Phase.WAITING, 1)
        coordinator.handle(Received(name, join), 1.0)

    def said(name: str, message: Message) -> list[Any]:
        return [effect for effect in coordinator.handle(Received(name, message), 1.0) if isinstance(effect, Send)]

    assert said("spare", Call(1, "stacks", "")) == []
    assert said("spare", Reply("a", 1, "")) == []
    assert said("a", Call(1, "stacks", "")) == []
