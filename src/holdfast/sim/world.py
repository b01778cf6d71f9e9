"""Virtual time: one queue of things to come, and for every host a clock of its own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class World:
    """Holds true time and what is still to happen; nothing else in the simulator waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        """Let `act` happen at a time; what is planned first for one moment happens first."""
        self._planned += 1
        heapq.heappush(self._queue, (when if when > self.now else self.now, self._planned, act, args))

    def after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Let `act` happen so many seconds from now."""
        self._planned += 1
        when = self.now + seconds if seconds > 0 else self.now
        heapq.heappush(self._queue, (when, self._planned, act, args))

    def run(self, until: float) -> None:
        """Let everything happen that is due up to and including a time, and stop there."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= until:
            self.now, _, act, args = pop(queue)
            self.events += 1
            act(*args)
        self.now = max(self.now, until)


@dataclass(frozen=True, slots=True)
class Clock:
    """One host's monotonic clock: it starts anywhere and runs at its own rate."""

    rate: float = 1.0
    offset_s: float = 0.0

    def local(self, true: float) -> float:
        """Say what this clock shows at a true time."""
        return self.offset_s + true * self.rate

    def true(self, local: float) -> float:
        """Say at what true time this clock shows something."""
        return (local - self.offset_s) / self.rate
