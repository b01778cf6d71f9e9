"""News: what is told of a run at each turn that it takes. Pure.

The run decides; what it then says about it, to the journal, the log and the screen, is put into words and data here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.coordinator import sentences
from holdfast.coordinator.messages import Cause, Closed
from holdfast.coordinator.state import Node, Round
from holdfast.facts import INFO, WARNING
from holdfast.quantities import count

#: Hosts that a fact names, of however many.
NAMES_TOLD_MAX = 16


@dataclass(frozen=True, slots=True)
class News:
    """One fact before the history has given it its number."""

    kind: str
    sentence: str
    data: dict[str, Any]
    level: int = INFO


def round_sealed(round_: Round, before: Round | None, spares: int) -> News:
    """A round was sealed; `spares` wait beside it."""
    number, size = round_.id.number, round_.size
    workers = next(iter(round_.places.values())).world_size
    joined = [host for name, host in round_.hosts.items() if before is None or name not in before.hosts]
    sentence = f"round {number} sealed: {count(size, 'node')}, {count(workers, 'worker')}"
    was_broken = before is not None and before.broken is not None
    data = {
        "round": number,
        "nodes": size,
        "world_size": workers,
        "spares": spares,
        "joined": joined[:NAMES_TOLD_MAX],
        "regroup_s": round_.sealed_at - before.broken_at if before is not None and was_broken else None,
    }
    return News("round_sealed", f"{sentence}; {sentences.names(joined)} joined" if joined else sentence, data)


def round_broken(round_: Round, cause: Cause | None) -> News:
    """A round was broken, by the failure given if it was one."""
    data = {
        "round": round_.id.number,
        "reason": round_.broken,
        "lasted_s": max(round_.broken_at - round_.sealed_at, 0.0),
        "failure": cause.detail if cause is not None else None,
    }
    return News("round_broken", f"round {round_.id.number} broke: {round_.broken}", data, WARNING)


def run_closed(run: str, closed: Closed, rounds: int, restarts_used: int) -> News:
    """The run is over."""
    data = {"reason": closed.reason, "failed": closed.failed, "rounds": rounds, "restarts_used": restarts_used}
    return News("run_closed", f"run '{run}' closed: {closed.reason}", data)


def node_gone(node: Node, sentence: str) -> News:
    """A node left or was lost."""
    return News("node_gone", sentence, {"node": node.spec.node, "host": node.name}, WARNING)


def worker_replaced(node: Node, cause: Cause, round_: Round, restarts_used: int) -> News:
    """A worker failed, and its round goes on."""
    data = {"round": round_.id.number, "failure": cause.detail or None, "restarts_used": restarts_used}
    sentence = f"{sentences.said_by(node.name, cause)}; it is replaced, the others go on"
    return News("worker_replaced", sentence, data, WARNING)


def recovered(round_: Round) -> News:
    """A restarted coordinator has found everybody again."""
    back = len(round_.places)
    return News("recovered", f"all {back} nodes of round {round_.id.number} are back", {"nodes": back})
