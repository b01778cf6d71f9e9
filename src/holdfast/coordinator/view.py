"""A run as plain data, for people and programs that look at it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.coordinator.messages import Phase

if TYPE_CHECKING:
    from holdfast.coordinator.rounds import Rounds
    from holdfast.coordinator.state import Node, Round


def describe(run: Rounds) -> dict[str, Any]:
    """Describe a run and its nodes."""
    round_, settings, closed = run.round, run.settings, run.closed
    return {
        "run": run.run,
        "stage": run.stage.value,
        "recovering": run.recovery is not None,
        "round": round_.id.number if round_ else 0,
        "broken": round_.broken if round_ else None,
        "restarts_used": run.restarts_used,
        "max_restarts": settings.max_restarts if settings else None,
        "min_nodes": settings.min_nodes if settings else None,
        "max_nodes": settings.max_nodes if settings else None,
        "closed": closed.reason if closed else None,
        "failed": closed.failed if closed else False,
        "nodes": [_describe_node(node, round_) for node in run.nodes.values()],
    }


def _describe_node(node: Node, round_: Round | None) -> dict[str, Any]:
    place = round_.places.get(node.spec.node) if round_ is not None else None
    return {
        "node": node.spec.node,
        "host": node.spec.host,
        "address": node.address,
        "role": node.spec.role,
        "workers": node.spec.local_world_size,
        "phase": node.phase.name.lower(),
        "rank": place.group_rank if place is not None and node.phase is not Phase.WAITING else None,
        "connected": node.dropped is None,
        "note": node.note,
    }
