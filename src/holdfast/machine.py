"""The contract of every pure machine: decide here, act in a driver.

A machine is told what happened and answers with what to do. It never waits, never looks at a clock, a socket,
a process or a file, never logs, and takes its randomness from the caller, so the same events at the same times
give the same effects on any machine. One driver beside it owns the outside world.

The rules that a driver keeps:

- `handle(event, now)` is called from one thread; `now` is this host's monotonic clock in seconds and never goes back.
- the returned effects are carried out in their order before the next event is handled;
- `handle(Tick(), now)` is called at `wakeup()` or soon after. Calling it earlier or more often does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect")


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else happened."""


def earliest(*times: float | None) -> float | None:
    """Return the first of some times, of which some or all may never come."""
    first = None
    for when in times:
        if when is not None and (first is None or when < first):
            first = when
    return first


class Machine(Protocol[Event, Effect]):
    """What every machine answers to."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Decide what `event` means and return what must be done, in order."""

    def wakeup(self) -> float | None:
        """Say when `Tick` is next needed, or None while only an event can change anything."""

    def check(self) -> None:
        """Assert every invariant; costs time in proportion to the state, so tests and simulations call it."""

    def snapshot(self) -> dict[str, Any]:
        """Describe the state as plain data that can be printed, stored as JSON, and compared."""
