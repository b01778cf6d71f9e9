"""Reminders: what a node is told again because its own words show that it has not heard it. Pure.

A node says with every beat what it believes. Where that differs from what is so, one side has missed something: either
the node is told again, or it is asked for a `Join` that says all.
"""

from __future__ import annotations

from holdfast.coordinator.messages import Beat, Broken, Phase, Resend, RoundId, Sealed
from holdfast.coordinator.state import Node, Round


def after_beat(node: Node, beat: Beat, round_: Round | None) -> Sealed | Broken | Resend | None:
    """Return what a node's beat shows to be missing on either side, or None."""
    if beat.phase is Phase.WAITING:
        if node.phase is Phase.WAITING and node.ask == beat.ask:
            return None
        return answer(node, round_, node.phase is Phase.RUNNING) if node.sealed_ask == beat.ask else Resend()
    if round_ is None or beat.round != round_.id:
        if beat.round is None or node.phase is Phase.WAITING:
            return Resend()
        return None if beat.phase is Phase.STOPPING else left_behind(beat.round, round_)
    if round_.broken is not None:
        return None if beat.phase is Phase.STOPPING else Broken(round_.id, round_.broken)
    return Resend() if beat.phase is not node.phase else None


def answer(node: Node, round_: Round | None, running: bool) -> Sealed | Resend:
    """Return what became of a node's ask: the round that answered it or, if that is over, that the ask is void."""
    if running and round_ is not None:
        return Sealed(node.sealed_ask, round_.places[node.spec.node])
    return Resend(void=node.sealed_ask)


def left_behind(theirs: RoundId, round_: Round | None) -> Broken:
    """Return what ends a round that is not, or not any more, the present one."""
    if round_ is not None and round_.id.number > theirs.number:
        return Broken(theirs, f"round {theirs.number} is over; round {round_.id.number} went on without this node")
    return Broken(theirs, f"round {theirs.number} is not known here; the coordinator was restarted without its memory")
