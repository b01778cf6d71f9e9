"""The history of a run: the facts that concern all nodes, numbered, so that every node writes the same. Pure.

Facts need no message of their own: the latest ones are part of the messages to all nodes when a round is sealed, broken
or closed, and a node that missed some shows it by the number in its next beat and gets them in the answer. Facts that
only a dead coordinator knew are lost; its successor continues with the next number that no node has heard.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from holdfast.coordinator.messages import Cause, Closed, ToldFact
from holdfast.coordinator.sentences import said_by
from holdfast.coordinator.state import Gone, Node, Round, names
from holdfast.facts import INFO, WARNING
from holdfast.quantities import count

#: How many facts are kept for nodes that join late.
FACTS_KEPT_MAX = 256
#: How many facts the answer to one beat repeats.
FACTS_RETOLD_MAX = 32
#: How many facts are part of a message to all nodes.
FACTS_RIDING_MAX = 4
SENTENCE_CHARS_MAX = 2000
#: How many hosts a fact names at most.
HOSTS_TOLD_MAX = 16


class History:
    """The latest facts of one run."""

    def __init__(self) -> None:
        self.last = 0
        self._kept: deque[ToldFact] = deque(maxlen=FACTS_KEPT_MAX)

    def add(self, kind: str, sentence: str, data: dict[str, Any], level: int, time: float) -> ToldFact:
        """Give a fact its number and keep it."""
        self.last += 1
        told = ToldFact(self.last, time, kind, sentence[:SENTENCE_CHARS_MAX], level, data)
        self._kept.append(told)
        return told

    def latest(self) -> tuple[ToldFact, ...]:
        """Return the facts for the next message to all nodes."""
        return tuple(self._kept)[-FACTS_RIDING_MAX:]

    def since(self, known: int) -> tuple[ToldFact, ...]:
        """Return the facts after number `known`, as many as fit into one message."""
        if known >= self.last:
            return ()
        return tuple(told for told in self._kept if told.number > known)[:FACTS_RETOLD_MAX]

    def catch_up(self, known: int) -> None:
        """Skip numbers that a node has heard already, from an earlier coordinator."""
        self.last = max(self.last, known)


# -- what is told at each turn of a run ------------------------------------------------------------------------


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
        "joined": joined[:HOSTS_TOLD_MAX],
        "regroup_s": round_.sealed_at - before.broken_at if before is not None and was_broken else None,
    }
    return News("round_sealed", f"{sentence}; {names(joined)} joined" if joined else sentence, data)


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


def node_gone(node: Node, why: Gone, sentence: str) -> News:
    """A node left or was lost."""
    return News("node_gone", sentence, {"node": node.spec.node, "host": node.name, "why": why.value}, WARNING)


def node_late(node: Node) -> News:
    """A node is silent for longer than its lease, but the others still make steps."""
    sentence = f"{node.name} has been silent for {node.spec.lease_s:g} s, but the others still make steps; it stays"
    return News("node_late", sentence, {"node": node.spec.node, "host": node.name}, WARNING)


def worker_replaced(node: Node, cause: Cause, round_: Round, restarts_used: int) -> News:
    """A worker failed, and its round continues."""
    data = {"round": round_.id.number, "failure": cause.detail or None, "restarts_used": restarts_used}
    sentence = f"{said_by(node.name, cause)}; it is replaced, the others go on"
    return News("worker_replaced", sentence, data, WARNING)


def recovered(round_: Round) -> News:
    """A restarted coordinator has found all members again."""
    back = len(round_.places)
    return News("recovered", f"all {back} nodes of round {round_.id.number} are back", {"nodes": back})
