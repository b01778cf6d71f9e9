"""A run whose coordinator can move: what counts after a pause, and what nodes that stand by are told."""

from __future__ import annotations

import msgspec

from holdfast.coordinator.events import NodeDropped, NodeProbed, Tell
from holdfast.coordinator.messages import (
    Ack,
    NodeSpec,
    Phase,
    Pledge,
    RoundId,
    RunSettings,
    Sealed,
    Succession,
    Term,
)
from holdfast.coordinator.standing import Standing
from holdfast.coordinator.state import Node
from tests.coordinator.test_run import Run


def moving(*nodes: str, most: int = 2) -> tuple[Run, Succession]:
    """Return a run whose nodes are in a round, none of them with the coordinator, and what they were told."""
    run = Run(1, most, takeover=True, recovery_s=10.0, expected=most)
    effects = [each for name in nodes for each in run.ask(name, pledge=Pledge(), standby=f"{name}:1")]
    sealed = [each.message for each in effects if isinstance(each, Tell) and isinstance(each.message, Sealed)]
    told = [each.succession for each in sealed if each.succession is not None]
    return run, told[-1]


def member_of(succession: Succession) -> Pledge:
    """Return what a member of the round says when it joins again."""
    ballots = tuple(msgspec.structs.replace(each, mine=True) for each in succession.ballots)
    return Pledge(succession.term, ballots)


def seals(run: Run, node: str, succession: Succession) -> bool:
    """Return whether a round is ready but for the votes, and then is asked for."""
    run.ask(node, pledge=member_of(succession), standby=f"{node}:1")
    run.tell(NodeProbed("b", gone=True))
    assert run.machine.standing is not None
    return run.machine.standing.poll([node], run.now) is not None or run.held[node].group_world_size == 1


def test_a_coordinator_that_has_sealed_a_round_counts_sure_deaths() -> None:
    run, succession = moving("a", "b")
    run.tell(NodeDropped("b", "its process ended"))
    run.pass_time(1.0, "a")

    assert seals(run, "a", succession)


def test_a_coordinator_that_was_stopped_counts_no_deaths_though_its_node_joins_again() -> None:
    """The dead may have gone on with another coordinator before they died, and with nodes that live."""
    run, succession = moving("a", "b")
    run.now += 60.0
    run.tell(NodeDropped("b", "its process ended"))
    run.pass_time(1.0, "a")

    assert not seals(run, "a", succession)


def test_a_coordinator_that_asks_for_a_higher_term_does_not_seal_in_the_old_one() -> None:
    """A node that has promised the higher term would never accept the round, and the others wait for it for ever."""
    standing = Standing("ours")
    settings = RunSettings(1, 4, takeover=True)
    nodes = [Node(NodeSpec(name, name, "", 1, 0), "", 1, 1, Phase.WAITING, 1, 100.0) for name in "abc"]
    standing.limits = (settings.min_nodes, settings.max_nodes)
    succession = standing.seal(RoundId(1, "n"), nodes, {})
    for name in "abc":
        standing.hear(name, member_of(succession), 0.0)
    standing.hear("d", Pledge(Term(1, "theirs")), 0.0)

    elect = standing.poll("abcd", 0.0)

    assert elect is not None
    assert elect.term == Term(2, "ours")
    standing.hear_promise("d", elect.poll, elect.term)
    assert not standing.concluded("abcd", 0.0)
    assert not standing.may_seal("abcd", 0.0)
    for name in "ab":
        standing.hear_promise(name, elect.poll, elect.term)
    assert standing.concluded("abcd", 0.0)
    assert standing.may_seal("abcd", 0.0)
    assert standing.term == elect.term


def test_a_node_that_stands_by_hears_where_the_coordinator_may_be_next() -> None:
    run, _ = moving("a", "b", "c")

    acks = [each.message for each in run.beat("c", Phase.WAITING) if isinstance(each, Tell)]

    assert [each.address for ack in acks if isinstance(ack, Ack) for each in ack.heirs] == ["a:1", "b:1"]
    members = [each.message for each in run.beat("a") if isinstance(each, Tell)]
    assert [ack.heirs for ack in members if isinstance(ack, Ack)] == [()]
    assert [ack.spares for ack in members if isinstance(ack, Ack)] == [1]
