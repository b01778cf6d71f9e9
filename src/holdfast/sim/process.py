"""A process: it handles one event at a time by its own clock, and may be slow, stopped or dead."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.machine import Machine, Tick
from holdfast.sim.violation import Violation
from holdfast.sim.world import Clock, World

#: Clocks are converted to and fro; what is due within this is due.
_ROUNDING_S = 1e-6
#: A machine may ask for a tick at once, but not for ever.
_TICKS_MAX = 4
_TICK = Tick()


class Process:
    """Runs one machine the way a driver does: events in, effects carried out, a timer for its wakeup."""

    def __init__(self, world: World, clock: Clock, rng: Random, *, timers_first: bool) -> None:
        self.world = world
        self.rng = rng
        self.alive = True
        #: Everything that reaches a slow process waits up to this long before it is looked at.
        self.slow_s = 0.0
        self.machine: Machine[Any, Any]
        self._clock = clock
        #: Whether a process that was stopped looks at its timers before its sockets when it goes on.
        self._timers_first = timers_first
        self._pauses = 0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        #: When the machine wants a tick, as it said after the last event; between events that stays as it is.
        self._due: float | None = None
        #: When the timer rings, and what for by the own clock.
        self._timer_at: float | None = None
        self._armed_for = 0.0
        self._ring_due = False
        self._local_last = float("-inf")
        self._slow_until = 0.0

    # -- what reaches it -------------------------------------------------------------------------------------

    def post(self, act: Callable[..., None], *args: Any) -> None:
        """Let the process look at something as soon as it can, in the order of posting."""
        if self.slow_s or (self._slow_until and self._slow_until > self.world.now):
            self._slow_until = max(self.world.now + self.rng.random() * self.slow_s, self._slow_until)
            self.world.at(self._slow_until, self._take, act, args)
        elif self._pauses or self._backlog:
            self._take(act, args)
        elif self.alive:
            act(*args)

    def pause(self) -> None:
        """Stop handling anything; what arrives is kept."""
        self._pauses += 1

    def resume(self) -> None:
        """Go on, with everything that has piled up."""
        self._pauses -= 1
        if self._pauses or not self.alive:
            return
        if self._ring_due and self._timers_first:
            self._ring_due = False
            self._tick()
        while self._backlog and self.alive:
            act, args = self._backlog.pop(0)
            act(*args)
        if self._ring_due:
            self._ring_due = False
            self._tick()

    def kill(self) -> None:
        """End the process; nothing reaches it any more."""
        self.alive = False
        self._backlog.clear()

    def local(self) -> float:
        """Return what the process's own clock shows."""
        clock = self._clock
        now = clock.offset_s + self.world.now * clock.rate  # as `Clock.local` says; this is asked for all the time
        if now > self._local_last:
            self._local_last = now
        return self._local_last

    # -- the machine -----------------------------------------------------------------------------------------

    def handle(self, event: Any) -> None:
        """Give the machine one event and carry out what it answers."""
        if not self.alive:
            return
        self.carry_out(self.machine.handle(event, self.local()))
        if self.alive:
            self._arm()

    def wakeup(self) -> float | None:
        """Say when a tick is next needed."""
        return self.machine.wakeup()

    def carry_out(self, effects: list[Any]) -> None:
        """Do what the machine says, in order."""
        raise NotImplementedError

    def _take(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self._pauses or self._backlog:
            self._backlog.append((act, args))
        else:
            act(*args)

    def _arm(self) -> None:
        wakeup = self._due = self.wakeup()
        if wakeup is None or (self._timer_at is not None and wakeup >= self._armed_for):
            return  # the timer that is set rings before that
        when = self._clock.true(wakeup)
        if self._timer_at is None or when < self._timer_at:
            self._timer_at, self._armed_for = when, wakeup
            self.world.at(when, self._ring, when)

    def _ring(self, when: float) -> None:
        if when != self._timer_at or not self.alive:
            return  # an earlier timer took this one's place
        self._timer_at = None
        if self._pauses:
            self._ring_due = True
        else:
            self.post(self._tick)

    def _tick(self) -> None:
        wakeup = self._due
        if wakeup is None:
            return
        if wakeup > self.local() + _ROUNDING_S:
            self._arm()
            return
        self._local_last = max(self._local_last, wakeup)
        for _ in range(_TICKS_MAX):
            self.handle(_TICK)
            again = self._due if self.alive else None
            if again is None or again > self._local_last:
                return
        raise Violation("no machine spins", f"ticked at {self._local_last:.6f}, it still asks for {again:.6f}")
