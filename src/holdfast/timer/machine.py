"""Timers: which workers set them, and which timers have expired. Pure.

It decides which workers hang, by the timers they set themselves. It does not know how requests arrive, what a worker
is, or how one is killed.

The rules:

1. A timer is known by its worker and its scope; setting it again replaces it.
2. A worker with an expired timer is reported once, with all its expired timers, the earliest first; then all its
   timers are forgotten.
3. Time in which this process itself did not run does not count: if a `Tick` comes much later than asked for (the
   process, or the whole host, was stopped), every deadline moves by as much.
4. A worker has at most `TIMERS_MAX` timers; more are not watched.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from holdfast.machine import Tick

TIMERS_MAX = 1000
#: The longest time between two looks, here and for hangs: a pause of our own is seen as one.
LOOK_S = 5.0
#: A look that is later than this was delayed by a pause, not by a busy machine.
LATE_S = 2.0

Worker = Hashable


class TimerSet(msgspec.Struct, frozen=True):
    """A worker will leave a scope by `deadline`, `seconds` after it set the timer; if not, it gets `signal`."""

    worker: Worker
    scope: str
    deadline: float
    signal: int = 9
    seconds: float = 0.0


class TimerReleased(msgspec.Struct, frozen=True):
    """A worker has left a scope."""

    worker: Worker
    scope: str


class WorkerForgotten(msgspec.Struct, frozen=True):
    """A worker is gone, with all its timers."""

    worker: Worker


TimerEvent = TimerSet | TimerReleased | WorkerForgotten | Tick


class TimersExpired(msgspec.Struct, frozen=True):
    """A worker did not leave these scopes in time."""

    worker: Worker
    timers: tuple[TimerSet, ...]


class TimerMachine:
    """Decides which timers have expired; see the module's opening."""

    def __init__(self) -> None:
        self._timers: dict[Worker, dict[str, TimerSet]] = {}
        #: When we last looked; while timers are set, the next look is asked for `LOOK_S` later at the latest.
        self._last_tick = 0.0

    def handle(self, event: TimerEvent, now: float) -> list[TimersExpired]:
        """Decide what one event means; only time expires timers."""
        match event:
            case TimerSet():
                self._set(event, now)
            case TimerReleased():
                self._release(event)
            case WorkerForgotten():
                self._timers.pop(event.worker, None)
            case Tick():
                return self._on_time(now)
        return []

    def wakeup(self) -> float | None:
        """Return when to look next; None while no timer is set."""
        earliest = self.next_deadline()
        return None if earliest is None else min(earliest, self._last_tick + LOOK_S)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, or None if no timer is set."""
        deadlines = (timer.deadline for timers in self._timers.values() for timer in timers.values())
        return min(deadlines, default=None)

    def expired(self, now: float) -> dict[Worker, tuple[TimerSet, ...]]:
        """Return the expired timers of each worker that has any, the earliest first; changes nothing."""
        found = {}
        for worker, timers in self._timers.items():
            late = [timer for timer in timers.values() if timer.deadline <= now]
            if late:
                found[worker] = tuple(sorted(late, key=lambda timer: timer.deadline))
        return found

    def check(self) -> None:
        """Assert every invariant."""
        for worker, timers in self._timers.items():
            assert 0 < len(timers) <= TIMERS_MAX, worker
            assert all((timer.worker, timer.scope) == (worker, scope) for scope, timer in timers.items())

    def snapshot(self) -> dict[str, Any]:
        """Describe the timers as plain data."""
        return {
            "timers": [
                {"worker": str(timer.worker), "scope": timer.scope, "deadline": timer.deadline, "signal": timer.signal}
                for timers in self._timers.values()
                for timer in timers.values()
            ]
        }

    def _set(self, timer: TimerSet, now: float) -> None:
        if not self._timers:
            self._last_tick = now  # no tick was asked for before, so none is late
        timers = self._timers.setdefault(timer.worker, {})
        if timer.scope in timers or len(timers) < TIMERS_MAX:
            timers[timer.scope] = timer

    def _release(self, event: TimerReleased) -> None:
        timers = self._timers.get(event.worker)
        if timers is not None:
            timers.pop(event.scope, None)
            if not timers:
                del self._timers[event.worker]

    def _on_time(self, now: float) -> list[TimersExpired]:
        if self._timers:
            self._forgive(now - (self._last_tick + LOOK_S))
        self._last_tick = now
        found = [TimersExpired(worker, timers) for worker, timers in self.expired(now).items()]
        for each in found:
            del self._timers[each.worker]
        return found

    def _forgive(self, late_s: float) -> None:
        if late_s > LATE_S:
            for timers in self._timers.values():
                for scope, timer in timers.items():
                    timers[scope] = msgspec.structs.replace(timer, deadline=timer.deadline + late_s)
