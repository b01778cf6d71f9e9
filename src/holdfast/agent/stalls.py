"""Workers that make no progress: stopped by a signal, or still running when the others have finished. Pure."""

from __future__ import annotations

from collections.abc import Iterable

#: How long a worker that others wait for may be stopped by a signal before the agent kills it.
FROZEN_GRACE_S = 0.03


class Frozen:
    """Says which workers to kill because a signal such as SIGSTOP has stopped them while the others wait for them.

    Only for workers that survive each other; elsewhere a stopped worker may be under a debugger.
    """

    def __init__(self) -> None:
        #: Since when each local rank is stopped.
        self._since: dict[int, float] = {}
        self._ended: set[int] = set()

    def begin(self, ranks: Iterable[int]) -> None:
        """Workers of these local ranks have been started."""
        for rank in ranks:
            self._since.pop(rank, None)
            self._ended.discard(rank)

    def look(self, stopped: Iterable[int], now: float) -> list[int]:
        """Take the local ranks that are stopped at this moment; returns those that have been for too long."""
        self._since = {rank: self._since.get(rank, now) for rank in stopped}
        due = [rank for rank, since in self._since.items() if now >= since + FROZEN_GRACE_S]
        self._ended.update(due)
        return due

    def has_ended(self, local_rank: int) -> bool:
        """Return whether this worker was killed because it was stopped."""
        return local_rank in self._ended

    def wakeup(self) -> float | None:
        """Say when to look again, or None."""
        return min((since + FROZEN_GRACE_S for since in self._since.values()), default=None)


class HalfFinished:
    """Notices, once per attempt, that some workers finished long ago while the others are still running."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        #: When to report; set by the first worker that finishes.
        self._due: float | None = None
        self._told = False

    def begin(self) -> None:
        """All workers have been started again."""
        self._due, self._told = None, False

    def look(self, finished: int, workers: int, now: float) -> str | None:
        """Return a sentence that says so when it is time for it."""
        limit_s = self._limit_s
        if limit_s is None or self._told or not finished:
            return None
        if self._due is None:
            self._due = now + limit_s
        if now < self._due:
            return None
        self._due, self._told = None, True
        return f"{finished} of {workers} workers finished {limit_s:g} s ago, the others go on"

    def wakeup(self) -> float | None:
        """Say when to look again, or None."""
        return self._due
