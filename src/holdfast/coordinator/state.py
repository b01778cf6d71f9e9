"""What a run is made of: stages, nodes, rounds. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from holdfast.coordinator.messages import Cause, NodeSpec, Phase, Place, RoundId
from holdfast.coordinator.ranks import Seat

FAILURES_KEPT_MAX = 64


class Stage(enum.StrEnum):
    """Where a run stands."""

    GATHERING = "gathering"
    SEALED = "sealed"
    REGROUPING = "regrouping"
    CLOSED = "closed"


@dataclass(slots=True)
class Node:
    """One live node, as last heard."""

    spec: NodeSpec
    address: str
    order: int
    seq: int
    phase: Phase
    ask: int
    #: When silence ends its life.
    expires_at: float
    #: The ask that its place in the current round answers; -1 while it has none.
    sealed_ask: int = -1
    #: The reason of a broken connection while the grace runs.
    dropped: str | None = None
    #: Until when it must have rejoined, while it is stopping.
    rejoin_by: float | None = None
    #: Whether it came from a round of a coordinator before this one, of which this one has no record.
    earlier: bool = False
    #: What people who look at the run should see of it.
    note: str = ""
    #: When its one valid entry in the heap of expiries comes up.
    watched_at: float = float("inf")

    @property
    def due(self) -> float:
        """When its time is up."""
        return self.expires_at if self.rejoin_by is None else min(self.expires_at, self.rejoin_by)

    @property
    def name(self) -> str:
        """How people know it."""
        return self.spec.host


@dataclass(slots=True)
class Round:
    """One agreed membership. `places` holds every member, in rank order once all are known."""

    id: RoundId
    places: dict[str, Place]
    size: int
    sealed_at: float
    hosts: dict[str, str]
    broken: str | None = None
    broken_at: float = 0.0
    done: dict[str, None] = field(default_factory=dict)
    failures: dict[str, Cause] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    charged: bool = False

    def seats(self) -> list[Seat]:
        """Return its members in rank order, once all are known."""
        return [Seat(name, host) for name, host in self.hosts.items()]

    def note_failure(self, node: str, cause: Cause) -> None:
        """Keep a node's first cause, unless that was only a victim's and this one is not."""
        known = self.failures.get(node)
        room = known is None and len(self.failures) < FAILURES_KEPT_MAX
        better = known is not None and known.victim and not cause.victim
        if room or better:
            self.failures[node] = cause
