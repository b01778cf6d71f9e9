"""Which faults strike a user's own job, when and where, chosen by a seed. Pure.

A plan is made before the job is looked at, so the same seed gives the same plan. It holds no process id: each fault has
a number between 0 and 1 that chooses among the workers or nodes that are there when it strikes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from holdfast.errors import UsageError

T = TypeVar("T")

#: A fault comes up to this part of the interval early or late, so that it may fall anywhere in a step.
JITTER = 0.1
FAULTS_MAX = 10_000


class Strike(enum.StrEnum):
    """What is done."""

    KILL_WORKER = "kill-worker"
    KILL_AGENT = "kill-agent"
    DRAIN = "drain"
    FREEZE = "freeze"
    FREEZE_NODE = "freeze-node"
    CUT = "cut"


ABOUT = {
    Strike.KILL_WORKER: "SIGKILL to one worker",
    Strike.KILL_AGENT: "SIGKILL to one agent; its workers die with it",
    Strike.DRAIN: "SIGTERM to one agent, as a scheduler does before it takes a node away",
    Strike.FREEZE: "SIGSTOP to one worker, and SIGCONT after --for",
    Strike.FREEZE_NODE: "SIGSTOP to an agent and its workers, and SIGCONT after --for",
    Strike.CUT: "drop all packets between one node and the others for --for; needs root and nft",
}
#: Need a second node, which goes on.
OF_NODES = frozenset({Strike.KILL_AGENT, Strike.DRAIN, Strike.FREEZE_NODE, Strike.CUT})
#: Take a node away for good.
TAKE_NODES = frozenset({Strike.KILL_AGENT, Strike.DRAIN})
#: Last for a while and are then undone.
LASTING = frozenset({Strike.FREEZE, Strike.FREEZE_NODE, Strike.CUT})
NEED_ROOT = frozenset({Strike.CUT})


class Chance(Protocol):
    """What a plan is made with: `random.Random(seed)`."""

    def random(self) -> float:
        """Return a number from 0 to 1, without 1."""

    def shuffle(self, x: Any) -> None:
        """Put a list into another order."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a plan: what, when after the start, and which of those that are there."""

    number: int
    kind: Strike
    at_s: float
    pick: float
    for_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Describe it as plain data."""
        return {"number": self.number, "kind": str(self.kind), "at_s": round(self.at_s, 3), "for_s": self.for_s}

    def __str__(self) -> str:
        lasts = f", for {self.for_s:g} s" if self.for_s else ""
        return f"{self.kind}{lasts}"


@dataclass(frozen=True, slots=True)
class Node:
    """One agent of this host and its workers: process ids by rank."""

    agent: int
    workers: dict[int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """What a fault strikes: a node, and one of its workers where the fault is for one."""

    node: Node
    rank: int | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes: the worker, or the agent and all its workers."""
        if self.rank is not None:
            return (self.node.workers[self.rank],)
        return (self.node.agent, *self.node.workers.values())

    def __str__(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank} (pid {self.node.workers[self.rank]})"
        ranks = ", ".join(map(str, sorted(self.node.workers))) or "none yet"
        return f"the agent {self.node.agent} (ranks: {ranks})"


def parse_kinds(text: str) -> tuple[Strike, ...]:
    """Read a list of faults, as in `kill-worker,freeze`; raises `UsageError` with the names that there are."""
    kinds = []
    for name in (part.strip() for part in text.split(",")):
        try:
            kinds.append(Strike(name))
        except ValueError:
            known = ", ".join(Strike)
            raise UsageError(f"--plan: there is no fault '{name}'; there are {known}") from None
    return tuple(dict.fromkeys(kinds))


def make_plan(
    kinds: Sequence[Strike], count: int, every_s: float, for_s: float, random: Chance
) -> tuple[PlannedFault, ...]:
    """Return `count` faults, one every `every_s`; each kind comes up before one comes up again."""
    assert kinds
    assert 0 < count <= FAULTS_MAX
    faults: list[PlannedFault] = []
    left: list[Strike] = []
    for number in range(1, count + 1):
        if not left:
            left = list(kinds)
            random.shuffle(left)
        kind = left.pop()
        at_s = every_s * (number + JITTER * (2 * random.random() - 1))
        faults.append(PlannedFault(number, kind, at_s, random.random(), for_s if kind in LASTING else 0.0))
    return tuple(faults)


def choose_target(fault: PlannedFault, nodes: Sequence[Node], nodes_of_job: int) -> Target | str:
    """Return what a fault strikes among the nodes of this host, or a sentence that says why it strikes nothing."""
    if fault.kind in OF_NODES:
        if not nodes:
            return "the job has no agent on this host at the moment"
        if max(nodes_of_job, len(nodes)) < 2:
            return "the job has one node only: no other could go on"
        return Target(_pick(nodes, fault.pick))
    workers = [(node, rank) for node in nodes for rank in sorted(node.workers)]
    if not workers:
        return "the job has no worker on this host at the moment"
    return Target(*_pick(workers, fault.pick))


def _pick(options: Sequence[T], pick: float) -> T:
    return options[min(int(pick * len(options)), len(options) - 1)]
