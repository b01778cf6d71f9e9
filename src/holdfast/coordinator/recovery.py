"""Recovery: how a coordinator that was restarted finds a round again that may still run. Pure.

The round is known from the record, with its members by name, or from the first node that speaks of it, with their
number alone. Either way nothing is sealed until all members are back, running or not, or their time is up. The agent
that carried the coordinator died with it: nobody waits for that one.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.coordinator import sentences
from holdfast.coordinator.messages import Place, RoundId
from holdfast.coordinator.ranks import Seat
from holdfast.coordinator.state import Node, Round


class Recovery:
    """The return of one round's members."""

    def __init__(self, round_id: RoundId, size: int, seats: Sequence[Seat], now: float, recovery_s: float) -> None:
        #: Its `places` hold those who are back; its `hosts` everybody, once everybody is known.
        self.round = Round(round_id, {}, size, now, {seat.node: seat.host for seat in seats})
        self.ends_at = now + recovery_s
        #: Whether the members are known by name; otherwise they are learned as they come.
        self.by_name = bool(seats)
        #: The rank of the agent that died with the coordinator, or -1.
        self._dead_rank = -1

    def take_back(self, node: Node, place: Place) -> None:
        """Note that a member is back."""
        self.round.places[node.spec.node] = place
        self.round.hosts[node.spec.node] = node.spec.host
        self._dead_rank = place.coordinator_rank

    def is_over(self, now: float) -> bool:
        """Say whether there is nobody left to wait for, or no time."""
        places = self.round.places
        dead = self._dead_rank >= 0 and all(place.group_rank != self._dead_rank for place in places.values())
        return len(places) + dead >= self.round.size or now >= self.ends_at

    def conclude(self) -> str | None:
        """Put the members into rank order; says who has not come back."""
        round_ = self.round
        round_.places = dict(sorted(round_.places.items(), key=lambda item: item[1].group_rank))
        if not self.by_name:
            round_.hosts = {name: round_.hosts[name] for name in round_.places}
        missing = [host for name, host in round_.hosts.items() if name not in round_.places]
        if missing:
            return sentences.names(missing)
        back = len(round_.places)
        return f"{round_.size - back} of {round_.size} nodes" if back < round_.size else None
