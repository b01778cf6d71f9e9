"""Links that lose all packets: found by what the kernel repeats, and which node stands apart for that."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.agent.links import (
    SILENT_S,
    TOLD_S,
    AskNodes,
    CannotPart,
    LinkEffect,
    LinkMachine,
    LinksSeen,
    NodeLinks,
    NodesTold,
    PartNode,
    TellSilent,
    choose_apart,
    pairs_of,
)

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


class Watch:
    """A machine that is looked at once a second, and checked after every look."""

    def __init__(self, min_nodes: int = 1, hang_limit_s: float | None = None) -> None:
        self.machine = LinkMachine(min_nodes, hang_limit_s)
        self.now = 0.0

    def look(self, seconds: float, links: Mapping[str, int], progress: int | None = None) -> list[LinkEffect]:
        """Look for so long, and return all that follows."""
        found: list[LinkEffect] = []
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            found += self.machine.handle(LinksSeen(links, progress), self.now)
            self.machine.check()
        return found

    def told(self, *silent: tuple[str, ...], answered: str = "", mine: int = 1, carrier: int = 0) -> list[LinkEffect]:
        """Hear what nodes at A, B and C see."""
        pairs = zip((A, B, C), silent, strict=True)
        nodes = {rank: NodeLinks((host,), links) for rank, (host, links) in enumerate(pairs)}
        seen = NodesTold(nodes, frozenset({answered} - {""}), mine, len(nodes), carrier)
        return self.machine.handle(seen, self.now)


def test_a_silence_is_told_once_and_then_the_nodes_are_asked() -> None:
    watch = Watch()

    told = watch.look(TOLD_S + 1, {C: 1})
    assert told == [TellSilent(1, C, TOLD_S)]
    assert watch.look(SILENT_S - TOLD_S, {C: 1}) == [AskNodes((C,))]


def test_of_two_nodes_that_cannot_talk_the_one_with_the_higher_rank_stands_apart() -> None:
    watch = Watch(min_nodes=2)
    watch.look(SILENT_S + 1, {C: 1})

    assert watch.told((), (C,), (B,)) == [
        PartNode(
            2, (B,), f"node 1 ({B}) and node 2 ({C}): packets between their workers have been lost for {SILENT_S:.0f} s"
        )
    ]


def test_the_node_at_the_other_end_may_have_seen_nothing() -> None:
    watch = Watch()
    watch.look(SILENT_S + 1, {C: 1})

    (parted,) = watch.told((), (C,), ())
    assert isinstance(parted, PartNode)
    assert (parted.node, parted.lost) == (2, (B,)), "it hears which host it has lost"


def test_a_host_that_answers_is_within_reach() -> None:
    watch = Watch()
    watch.look(SILENT_S + 1, {C: 1})

    assert watch.told((), (C,), (B,), answered=C) == []


def test_steps_end_a_silence() -> None:
    watch = Watch()
    for step in range(100):
        assert watch.look(TOLD_S - 2, {C: 1}, progress=step) == []
    assert watch.machine.silent == (C,)
    watch.look(1, {C: 1}, progress=100)
    assert watch.machine.silent == ()


def test_workers_that_beat_may_open_other_connections_meanwhile() -> None:
    watch = Watch()
    watch.look(2, {}, progress=7)
    watch.look(1, {C: 1}, progress=7)

    assert AskNodes((C,)) in watch.look(SILENT_S + 1, {}, progress=7)


def test_without_heartbeats_a_look_without_repeated_data_ends_a_silence() -> None:
    watch = Watch()
    for _ in range(20):
        assert watch.look(TOLD_S - 1, {C: 1}) == []
        assert watch.look(1, {}) == []


def test_time_in_which_the_agent_did_not_run_does_not_count() -> None:
    watch = Watch()
    watch.look(2, {C: 1})
    watch.now += 100.0

    assert watch.look(TOLD_S - 1, {C: 1}) == []


def test_a_limit_for_hangs_makes_it_quicker() -> None:
    assert AskNodes((C,)) in Watch(hang_limit_s=10.0).look(6, {C: 1})


def test_fewer_than_min_nodes_are_never_left_and_that_is_told_once() -> None:
    watch = Watch(min_nodes=3)
    watch.look(SILENT_S + 1, {C: 1})

    (told,) = watch.told((), (C,), (B,))
    assert isinstance(told, CannotPart)
    assert told.sentence.endswith("cannot be kept apart, because MIN is 3 nodes")
    assert watch.told((), (C,), (B,)) == []


def test_a_pair_that_this_node_is_no_part_of_is_left_to_others() -> None:
    watch = Watch()
    watch.look(SILENT_S + 1, {"192.168.0.9": 1})

    assert watch.told((), ("192.168.0.9",), ()) == [], "no node has this address"
    assert watch.told((B,), (), (B,), mine=0) == [], "nothing that we have lost ourselves"


def test_the_node_that_has_lost_all_others_goes_and_the_others_stay() -> None:
    assert choose_apart([(0, 1), (0, 2), (0, 3)]) == [0]
    assert choose_apart([(0, 1), (2, 3)]) == [3, 1]
    assert choose_apart([(0, 1)], carrier=1) == [0], "not the one that carries the coordinator"
    assert choose_apart([(0, 1), (1, 2)], carrier=1) == [1]


def test_an_address_that_several_nodes_have_tells_nothing() -> None:
    assert pairs_of({0: NodeLinks((A,), (B,)), 1: NodeLinks((B,)), 2: NodeLinks((B,))}) == []
    assert pairs_of({0: NodeLinks((A,), (B, A)), 1: NodeLinks((B,), (A,))}) == [(0, 1)]
