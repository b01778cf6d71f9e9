"""A party: one worker's part in the rounds of a training, with the same state for all who take part.

It joins a round, connects to its neighbours, takes the state of the most advanced worker where its own is not the same,
and at the end of every step hears how the others did.
"""

from __future__ import annotations

import json
import struct
import time
from dataclasses import dataclass
from typing import Any

from holdfast import guest
from holdfast.checkpoint.layout import pack, unpack
from holdfast.errors import NotRetryableError, RoundOverError, UsageError
from holdfast.facts import Fact, facts
from holdfast.train.membership import Circle, Membership
from holdfast.train.ring import Ring
from holdfast.train.state import State

#: What a worker says at the end of a step: its number, whether newcomers wait, whether to stop, how long it took.
_VOTE = struct.Struct("<QBBd")


@dataclass(frozen=True, slots=True)
class Votes:
    """What all workers said at the end of a step."""

    newcomers: bool
    stop: bool
    #: How long each rank took, without the wait for the others.
    seconds: tuple[float, ...]


class Party:
    """What a worker has while it trains with others; `rank` and `world_size` change with every round."""

    def __init__(self, membership: Membership, operation_timeout_s: float | None = None) -> None:
        self.membership = membership
        guest.tell_facts()
        self._operation_timeout_s = operation_timeout_s
        self._circle: Circle | None = None
        self._ring: Ring | None = None
        #: Whether the state has ever been made equal to the others'.
        self.synced = False
        #: Whether the state is whole: not left half-changed by a step that failed.
        self.clean = True

    # -- what programs read ----------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's rank in the present round."""
        return self.circle.rank

    @property
    def world_size(self) -> int:
        """How many workers the present round has."""
        return self.circle.world_size

    @property
    def round(self) -> int:
        """The number of the present round."""
        return self.circle.number

    @property
    def circle(self) -> Circle:
        """The present round."""
        if self._circle is None:
            raise UsageError("there is no round yet: it begins with the first step")
        return self._circle

    @property
    def ring(self) -> Ring:
        """The collectives of the present round."""
        if self._ring is None:
            raise UsageError("there is no round now: it begins with the next step")
        return self._ring

    @property
    def progress(self) -> int:
        """How many steps have been counted; who has most gives its state to the others."""
        return 0

    # -- rounds ----------------------------------------------------------------------------------------------------

    def form_round(self) -> Circle:
        """Block until there is a round whose members are connected; raises `RoundOverError` where it did not last."""
        self.close_round()
        circle = self._circle = self.membership.join()
        self._ring = Ring.open(
            circle.rank,
            circle.world_size,
            self.membership.listener,
            circle.peer,
            circle.token,
            until=lambda ring: self.membership.on_break(ring.abort),
        )
        self._ring.timeout_s = self._operation_timeout_s
        self.on_round()
        return circle

    def on_round(self) -> None:
        """Called when a round stands, before the state is synced; process groups are formed here."""

    def close_round(self) -> None:
        """Let go of what belongs to the last round."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def sync(self, state: State, reason: str, began: float) -> None:
        """Have the state made equal on all workers, and tell how long the way here took."""
        _parties.append(self)
        try:
            state.sync(self.world_size, self.rank)
        finally:
            _parties.pop()
        took_ms = (time.monotonic() - began) * 1000
        facts.publish(
            Fact(
                "regrouped",
                f"round {self.round}: rank {self.rank} of {self.world_size} after {took_ms:.0f} ms ({reason})",
                {"round": self.round, "rank": self.rank, "world_size": self.world_size, "duration_ms": took_ms},
            )
        )

    # -- the same state for all ----------------------------------------------------------------------------------

    def sync_state(self, state: State) -> None:
        """Take the state of the most advanced worker, wherever this one's is not the same."""
        began = time.monotonic()
        saved = -1 if self.synced and self.clean else self.saved_progress()
        mine = {"progress": self.progress, "clean": self.clean, "synced": self.synced, "saved": saved}
        members = [json.loads(text) for text in self.ring.all_gather(json.dumps(mine).encode())]
        source, restores = choose_source(members)
        if restores:
            if self.rank == source:
                self.restore_saved(state)
            behind = [rank for rank in range(self.world_size) if rank != source]
        else:
            behind = [rank for rank, one in enumerate(members) if rank != source and _needs(one, members[source])]
        moved = 0
        if behind:
            data = self.ring.broadcast(self._pack(state) if self.rank == source else None, source)
            moved = len(data)
            if self.rank in behind:
                self._unpack(state, data)
        self.synced = self.clean = True
        if moved:
            took_ms = (time.monotonic() - began) * 1000
            facts.publish(
                Fact(
                    "state_synced",
                    f"rank {source} gave its state ({moved} bytes, step {members[source]['progress']}) to "
                    f"{len(behind)} of {self.world_size} workers in {took_ms:.0f} ms",
                    {"duration_ms": took_ms, "bytes": moved, "source": source, "to": behind},
                )
            )

    def saved_progress(self) -> int:
        """How far the newest checkpoint is that this worker can reach; -1 where there is none."""
        return -1

    def restore_saved(self, state: State) -> None:
        """Become what the newest checkpoint says."""
        raise NotImplementedError

    def position(self) -> Any:
        """What belongs to the state beside the user's part of it, as plain data."""
        return None

    def take_position(self, position: Any) -> None:
        """Become what another worker's `position` says."""

    def _pack(self, state: State) -> bytes:
        return pack({"state": state.capture_snapshot(), "position": self.position()}).to_bytes()

    def _unpack(self, state: State, data: bytes | memoryview) -> None:
        tree = unpack(data, verify=False)
        if tree["state"] is not None:
            state.apply_snapshot(tree["state"])
        self.take_position(tree["position"])

    # -- the end of a step -----------------------------------------------------------------------------------------

    def vote(self, number: int, *, stop: bool = False, seconds: float = 0.0) -> Votes:
        """Tell the others that a step is done here and hear it of them; raises `RoundOverError` where one is gone."""
        mine = _VOTE.pack(number, self.membership.newcomers > 0, stop, seconds)
        votes = [_VOTE.unpack(text) for text in self.ring.all_gather(mine)]
        if any(other != number for other, *_ in votes):
            raise RoundOverError(f"the workers are at different steps: {[other for other, *_ in votes]}")
        return Votes(
            newcomers=any(newcomers for _, newcomers, _, _ in votes),
            stop=any(stops for _, _, stops, _ in votes),
            seconds=tuple(took for *_, took in votes),
        )


def choose_source(members: list[dict[str, Any]]) -> tuple[int, bool]:
    """Choose whose state all take, and whether it must be restored from a checkpoint first.

    It is the most advanced that is whole; among equals one that was in step, then by rank. A checkpoint is taken only
    where it is further than any whole state: when all begin, or when no whole state is left.
    """
    whole = [rank for rank, one in enumerate(members) if one["clean"]]
    best = max((members[rank]["progress"] for rank in whole), default=-1)
    saved = max(range(len(members)), key=lambda rank: (members[rank].get("saved", -1), -rank))
    if members[saved].get("saved", -1) > best:
        return saved, True
    furthest = max(one["progress"] for one in members)
    if best < furthest:
        raise NotRetryableError(
            f"no worker holds the whole state of step {furthest} any more, and there is no checkpoint to go back to"
        )
    return max(whole, key=lambda rank: (members[rank]["progress"], members[rank]["synced"], -rank)), False


def _needs(one: dict[str, Any], source: dict[str, Any]) -> bool:
    return not one["clean"] or not one["synced"] or one["progress"] < source["progress"]


#: The parties that are syncing their state, for `State.sync`.
_parties: list[Party] = []


def current() -> Party | None:
    """Return the party that is syncing its state at this moment."""
    return _parties[-1] if _parties else None
