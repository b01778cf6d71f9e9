"""The data of a run: stages, nodes, rounds, what delays the next round, and what a restart must know. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.coordinator.messages import Cause, NodeSpec, Phase, Place, RoundId, RunSettings
from holdfast.coordinator.ranks import Seat

FAILURES_KEPT_MAX = 64
NAMES_TOLD_MAX = 4


class Stage(enum.StrEnum):
    """The stage of a run."""

    GATHERING = "gathering"
    SEALED = "sealed"
    REGROUPING = "regrouping"
    CLOSED = "closed"


class Gone(enum.StrEnum):
    """Why a node is not live any more; told with the fact that it is gone."""

    LEFT = "left"
    #: Its connection broke and it did not come back within the grace.
    DROPPED = "dropped"
    SILENT = "silent"
    #: It did not stop its workers and rejoin in time.
    LATE = "late"
    #: It belongs to an earlier launch.
    EARLIER = "earlier launch"


#: Nodes that are gone for one of these may live, and follow another coordinator.
UNHEARD = frozenset({Gone.SILENT, Gone.LATE})


class Hold(enum.StrEnum):
    """What the next round waits for."""

    REJOIN = "nodes that stop their workers"
    CONNECTION = "nodes whose connection broke a moment ago"
    MORE = "more nodes"
    PERMIT = "the permission to seal"
    QUORUM = "a quorum of the last round"
    LAST_CALL = "the end of the last call"


@dataclass(frozen=True, slots=True)
class Holdup:
    """Why the next round is not sealed yet: how many nodes are missing, or until when it waits."""

    why: Hold
    missing: int = 0
    until: float = 0.0


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
    #: Whether it was there in the time of a coordinator before this one, of which this one has no record.
    earlier: bool = False
    #: A text about it, for `holdfast rounds`.
    note: str = ""
    #: When it was heard last, and how many steps its workers had made.
    heard_at: float = 0.0
    steps: int = 0
    #: Whether its lease has run out and it stays, because the others make steps.
    is_late: bool = False
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


class Recovery:
    """The return of one round's members, after a restart of the coordinator.

    The round is known from the record, with its members by name, or from the first node that speaks of it, with their
    number alone. Either way nothing is sealed until all members are back, running or not, or their time is up. The
    agent that carried the coordinator died with it: it is not waited for, unless it may have outlived it.
    """

    def __init__(
        self,
        round_id: RoundId,
        size: int,
        seats: Sequence[Seat],
        now: float,
        recovery_s: float,
        *,
        awaits_carrier: bool = False,
    ) -> None:
        self._awaits_carrier = awaits_carrier
        #: Its `places` hold the members that are back; its `hosts` all members, once they are known.
        self.round = Round(round_id, {}, size, now, {seat.node: seat.host for seat in seats})
        self.ends_at = now + recovery_s
        #: Whether the members are known by name; otherwise they are learned as they come.
        self.by_name = bool(seats)
        #: The rank of the agent that died with the coordinator, or -1.
        self._dead_rank = -1
        #: Members that are surely dead, and the name of the one that carried the coordinator, where it is known.
        self._dead: dict[str, None] = {}
        self._carrier = ""

    def note_dead(self, nodes: Iterable[str], carrier: str) -> None:
        """Do not wait for members that are surely gone."""
        self._dead.update(dict.fromkeys(nodes))
        self._carrier = carrier

    def take_back(self, node: Node, place: Place) -> None:
        """Note that a member is back; one that was given up before the record was written is a newcomer, as then."""
        if self.by_name and node.spec.node not in self.round.hosts:
            return
        self.round.places[node.spec.node] = place
        self.round.hosts[node.spec.node] = node.spec.host
        self._dead_rank = -1 if self._awaits_carrier else place.coordinator_rank

    def is_over(self, now: float) -> bool:
        """Return whether all are back that can be, or their time is up."""
        places = self.round.places
        dead = sum(1 for name in self._dead if name not in places)
        if self._dead_rank >= 0 and self._carrier not in self._dead:
            dead += all(place.group_rank != self._dead_rank for place in places.values())
        return len(places) + dead >= self.round.size or now >= self.ends_at

    def conclude(self) -> str | None:
        """Put the members into rank order; says which have not come back."""
        round_ = self.round
        round_.places = dict(sorted(round_.places.items(), key=lambda item: item[1].group_rank))
        if not self.by_name:
            round_.hosts = {name: round_.hosts[name] for name in round_.places}
        missing = [host for name, host in round_.hosts.items() if name not in round_.places]
        if missing:
            return names(missing)
        back = len(round_.places)
        return f"{round_.size - back} of {round_.size} nodes" if back < round_.size else None


class RunRecord(msgspec.Struct, frozen=True):
    """The lasting facts of one run: small, and written before any node acts on them."""

    version: int = 1
    last_number: int = 0
    restarts_used: int = 0
    #: On disk it has the name that it had in 0.1.
    failures_without_progress: int = msgspec.field(default=0, name="fruitless")
    closed: str | None = None
    failed: bool = False
    settings: RunSettings | None = None
    #: The last round; `broken` says why it is over, if it is.
    round: RoundId | None = None
    #: Its members in rank order; none while they are still being learned.
    seats: list[Seat] = []
    broken: str | None = None
    #: How many of its members are worth waiting for: those that were live.
    awaited: int = 0
    #: Whether the broken round's failures are in `restarts_used` already.
    charged: bool = False
    #: The number of the last fact in the run's history.
    facts: int = 0
    #: The number of a round that was about to be sealed; 0 if there is none.
    reserved: int = 0
    #: What a closed run failed for, without its details, and whether that was a crash loop.
    cause: Cause | None = None
    crash_loop: bool = False


def names(hosts: Sequence[str], total: int | None = None) -> str:
    """List a few names and count the rest; `total` counts also those that are not in the list."""
    total = len(hosts) if total is None else total
    listed = hosts[:NAMES_TOLD_MAX]
    told = [host if (times := listed.count(host)) == 1 else f"{times} on {host}" for host in dict.fromkeys(listed)]
    if total > len(listed):
        told.append(f"{total - len(listed)} more")
    return ", ".join([*told[:-2], " and ".join(told[-2:])])
