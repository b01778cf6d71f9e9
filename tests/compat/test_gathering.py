"""Nodes that share one text: what each decides, with time as a number."""

from __future__ import annotations

import random

import pytest

from holdfast.compat.elastic.gathering import Action, Done, Gathering, GatheringMachine, Node, Rules, Wait, Write
from holdfast.errors import RendezvousClosedError, RendezvousStateError


class Text:
    """The shared text, and nodes that change it one at a time."""

    def __init__(self, min_nodes: int = 2, max_nodes: int = 4, last_call_s: float = 10, lease_s: float = 15) -> None:
        self.rules = Rules(min_nodes, max_nodes, last_call_s, lease_s)
        self.data = Gathering().encode()
        self.now = 0.0
        self.nodes: dict[str, GatheringMachine] = {}

    @property
    def state(self) -> Gathering:
        return Gathering.decode(self.data)

    def node(self, name: str) -> GatheringMachine:
        return self.nodes.setdefault(name, GatheringMachine(Node(name, 1, 0), self.rules))

    def settle(self, name: str, want: str) -> Action:
        """Let a node have its way until it has nothing more to write."""
        while True:
            action: Action = getattr(self.node(name), want)(self.state, self.now)
            if not isinstance(action, Write):
                return action
            self.data = action.gathering.encode()

    def join(self, *names: str) -> Action:
        for name in names:
            action = self.settle(name, "join")
        return action

    def beat(self, *names: str) -> None:
        for name in names:
            self.node(name).beat()
            self.settle(name, "keep_alive")

    def ranks(self) -> dict[str, int]:
        return {name.partition("_")[0]: rank for name, rank in self.state.participants.items()}

    def waiting_for(self, name: str) -> int:
        return self.node(name).nodes_waiting(self.state)


def test_a_round_is_complete_when_it_is_full_and_ranks_follow_the_names() -> None:
    text = Text(min_nodes=2, max_nodes=3)

    assert text.join("c", "a") == Wait("2 of at most 3 nodes are here; this is the last call")
    assert isinstance(text.join("b"), Done)

    assert text.ranks() == {"a": 0, "b": 1, "c": 2}
    assert isinstance(text.join("a"), Done)


def test_enough_nodes_wait_for_more_until_the_last_call_is_over() -> None:
    text = Text()

    assert text.join("a") == Wait("1 of at least 2 nodes are here")
    text.join("b")
    text.now = 9.9
    assert isinstance(text.join("a", "b"), Wait)
    text.now = 10.0
    assert isinstance(text.join("b"), Done)

    assert text.ranks() == {"a": 0, "b": 1}


def test_a_node_that_comes_late_waits_and_is_seen() -> None:
    text = Text(min_nodes=1, max_nodes=2, last_call_s=0)
    text.join("a")

    assert text.join("b") == Wait("round 0 is running; its nodes were told")
    assert text.waiting_for("a") == 1


def test_after_the_first_round_no_node_waits_once_all_are_back() -> None:
    text = Text(min_nodes=1, max_nodes=4, last_call_s=0)
    text.join("a")
    text.node("a").rules = text.node("b").rules = Rules(1, 4, last_call_s=100, lease_s=15)
    text.join("b")

    text.settle("a", "leave")
    assert isinstance(text.join("a"), Wait)
    assert isinstance(text.join("b"), Done)

    assert text.state.round == 1
    assert text.ranks() == {"a": 0, "b": 1}


def test_a_full_round_has_spares_that_step_in_when_one_is_lost() -> None:
    text = Text(min_nodes=2, max_nodes=2)
    text.join("a", "b")

    assert text.join("c") == Wait("round 0 has no room")
    assert text.waiting_for("a") == 0
    text.settle("b", "leave")
    text.join("c")
    assert text.waiting_for("a") == 2  # one was lost, and one wants in
    text.settle("a", "leave")
    text.join("c", "a")

    assert text.ranks() == {"a": 0, "c": 1}
    assert text.state.round == 1


def test_a_node_whose_beat_stands_still_is_taken_out_and_the_others_see_it() -> None:
    text = Text(min_nodes=1, max_nodes=2)
    text.join("a", "b")
    for moment in (5, 10, 15, 20, 25):
        text.now = moment
        text.beat("a")
    assert text.waiting_for("a") == 1
    assert text.state.is_broken

    text.settle("a", "leave")

    assert isinstance(text.join("a"), Done)
    assert text.ranks() == {"a": 0}


def test_a_node_that_was_taken_out_by_mistake_sees_that_it_must_come_back() -> None:
    text = Text(min_nodes=1, max_nodes=2)
    text.join("a", "b")
    for moment in (5, 10, 15, 20, 25):
        text.now = moment
        text.beat("a")

    text.beat("b")

    assert text.waiting_for("b") >= 1


def test_clocks_are_never_compared() -> None:
    """A node whose clock is a year ahead is neither buried nor buries anybody."""
    text = Text(min_nodes=2, max_nodes=2)
    text.join("a", "b")
    for moment in range(0, 60, 5):
        text.now = moment
        text.beat("a")
        text.now = moment + 3e7
        text.beat("b")

    assert text.ranks() == {"a": 0, "b": 1}


def test_a_closed_rendezvous_admits_no_node() -> None:
    text = Text()
    text.join("a")
    text.settle("a", "close")

    with pytest.raises(RendezvousClosedError):
        text.join("b")
    assert isinstance(text.settle("a", "close"), Done)


def test_who_leaves_for_good_is_no_longer_waited_for() -> None:
    text = Text(min_nodes=1, max_nodes=3, last_call_s=0)
    text.join("a")
    text.node("b").rules = Rules(1, 3, last_call_s=100, lease_s=15)
    text.join("b")
    left = text.node("b").leave(text.state, 0, for_good=True)
    assert isinstance(left, Write)

    assert list(left.gathering.beats) == ["a_1_0"]


@pytest.mark.parametrize("data", [b"", b"\x80\x04K\x01.", b"{}", b'{"version": 99}', b'{"version": 1, "x": 2}', b"[1]"])
def test_a_state_that_is_not_ours_is_refused(data: bytes) -> None:
    with pytest.raises(RendezvousStateError, match="is not ours"):
        Gathering.decode(data)


def test_a_state_is_read_as_it_was_written() -> None:
    text = Text(min_nodes=1, max_nodes=1)
    text.join("a", "b")

    assert Gathering.decode(text.state.encode()) == text.state


@pytest.mark.parametrize("seed", range(20))
def test_whatever_nodes_do_ranks_are_a_row_and_everybody_is_in_one_place(seed: int) -> None:
    dice = random.Random(seed)
    text = Text(min_nodes=2, max_nodes=3, last_call_s=2)
    names = ["a", "b", "c", "d", "e"]
    for _ in range(300):
        text.now += dice.random()
        name, want = dice.choice(names), dice.choice(["join", "join", "leave", "keep_alive", "beat"])
        if want == "beat":
            text.beat(name)
        else:
            text.settle(name, want)
        state = text.state
        everybody = [*state.participants, *state.waiting, *state.spares]
        assert len(everybody) == len(set(everybody))
        assert len(state.participants) <= 3
        if state.complete:
            assert 2 <= state.size <= 3
            assert len(set(state.participants.values())) == len(state.participants)
            assert set(state.participants.values()) <= set(range(state.size))
