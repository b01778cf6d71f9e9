"""Workers that stand still: stopped by a signal while others wait for them, or left over when others have finished."""

from __future__ import annotations

import time

from holdfast.workers.crew import Crew, stopped_by_signal

#: How long a worker that others wait for may stand still, stopped by a signal, before it is replaced.
FROZEN_GRACE_S = 0.03


class Frozen:
    """Ends workers that somebody has stopped with SIGSTOP or its like: the others wait for them, and can do without.

    Only for workers that outlive each other; elsewhere a stopped worker may be somebody's debugging.
    """

    def __init__(self) -> None:
        #: Since when each local rank stands still.
        self._since: dict[int, float] = {}
        self._ended: set[int] = set()

    def begin(self, ranks: list[int]) -> None:
        """Workers of these local ranks have been started."""
        for rank in ranks:
            self._since.pop(rank, None)
            self._ended.discard(rank)

    def look(self, crew: Crew, *, outlive: bool) -> None:
        """Find those that are stopped, and end those that have been for longer than a moment."""
        pids = crew.pids()
        running = {pids[rank]: rank for rank in crew.running()}
        stopped = [running[pid] for pid in stopped_by_signal(running)] if outlive else []
        now = time.monotonic()
        self._since = {rank: self._since.get(rank, now) for rank in stopped}
        for rank, since in self._since.items():
            if now >= since + FROZEN_GRACE_S:
                self._ended.add(rank)
                crew.kill(rank)

    def has_ended(self, local_rank: int) -> bool:
        """Say whether this worker was ended for standing still."""
        return local_rank in self._ended

    def deadline(self) -> float | None:
        """The monotonic time at which to look again, or None."""
        return min((since + FROZEN_GRACE_S for since in self._since.values()), default=None)


class HalfFinished:
    """Notices, once an attempt, that some workers finished long ago while the others go on."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        #: When to report; set by the first worker that finishes.
        self._due: float | None = None
        self._told = False

    def begin(self) -> None:
        """All workers have been started anew."""
        self._due, self._told = None, False

    def look(self, crew: Crew) -> str | None:
        """Return a sentence that says so when it is time for it."""
        limit_s = self._limit_s
        if limit_s is None or self._told or not crew.exits():
            return None
        now = time.monotonic()
        if self._due is None:
            self._due = now + limit_s
        if now < self._due:
            return None
        self._due, self._told = None, True
        return f"{len(crew.exits())} of {len(crew.plans)} workers finished {limit_s:g} s ago, the others go on"

    def deadline(self) -> float | None:
        """The monotonic time at which to look again, or None."""
        return self._due
