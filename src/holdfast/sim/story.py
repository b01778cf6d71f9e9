"""The story of a simulation: times, speakers and sentences, for people to read and for digests."""

from __future__ import annotations

import hashlib

from holdfast.coordinator.messages import (
    Ack,
    Beat,
    Broken,
    Close,
    Closed,
    Fail,
    Finish,
    Join,
    Leave,
    Newcomers,
    Place,
    Rejected,
    Sealed,
)
from holdfast.sim.world import World
from holdfast.wire.frames import Message

LINES_MAX = 200_000


class Story:
    """Keeps every line that is told."""

    def __init__(self, world: World) -> None:
        self.lines: list[str] = []
        self._world = world

    def tell(self, who: str, what: str) -> None:
        """Add one line at the present time."""
        if len(self.lines) < LINES_MAX:
            self.lines.append(f"{self._world.now:9.3f}  {who:<12} {what}")

    def digest(self) -> str:
        """Return a short fingerprint of the whole story."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def words(message: Message) -> str:
    """Put a message into a few words."""
    match message:
        case Join():
            place = f", was in round {message.place.round}" if message.place is not None else ""
            cause = f" ({_cause(message.cause.sentence, message.cause.victim)})" if message.cause is not None else ""
            return f"Join, {message.phase.name.lower()}, ask {message.ask}{place}{cause}"
        case Beat():
            return f"Beat, {message.phase.name.lower()}, ask {message.ask}, round {message.round}"
        case Fail():
            return f"Fail of round {message.round}: {_cause(message.cause.sentence, message.cause.victim)}"
        case Finish():
            return f"Finish of round {message.round}"
        case Leave() | Close():
            return f"{type(message).__name__}: {message.reason}"
        case Sealed():
            return f"Sealed, ask {message.ask}: {describe_place(message.place)}"
        case Broken():
            return f"Broken, round {message.round}: {message.reason}"
        case Closed() | Rejected():
            return f"{type(message).__name__}: {message.reason}"
        case Ack():
            return f"Ack: {message.sentence}"
        case Newcomers():
            return f"Newcomers: {message.nodes_waiting}"
        case _:
            return type(message).__name__


def describe_place(place: Place) -> str:
    """Put a place into a few words."""
    return (
        f"round {place.round}, node {place.group_rank}/{place.group_world_size}, "
        f"ranks from {place.first_rank}/{place.world_size}, master {place.master_addr}:{place.master_port}"
        + (f", restart {place.restarts_used}" if place.restarts_used else "")
    )


def _cause(sentence: str, victim: bool) -> str:
    return f"{sentence}, a victim" if victim else sentence
