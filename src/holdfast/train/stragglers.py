"""Stragglers: step times of all ranks, smoothed, and the rank that keeps the others waiting. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: The weight of the newest time in the smoothed one.
WEIGHT = 0.1
#: The first steps of a round do not count: caches are cold, and a newcomer may be setting up its GPU.
STEPS_COLD = 5
#: No rank is judged by fewer steps than this.
STEPS_MIN = 20
#: A rank this much slower than the median is a straggler ...
RATIO = 1.5
#: ... if it costs at least this much; less does not matter.
SECONDS_MIN = 0.005


@dataclass(frozen=True, slots=True)
class Slow:
    """One rank that keeps the others waiting."""

    rank: int
    seconds: float
    median: float

    @property
    def sentence(self) -> str:
        """Describe it for the user."""
        return (
            f"rank {self.rank} keeps the others waiting: {self.seconds * 1000:.0f} ms a step, "
            f"{self.seconds / self.median:.1f} times the median"
        )


class Stragglers:
    """Watches the times of one round after the other; `slow` names the slowest rank while it is a straggler."""

    def __init__(self) -> None:
        self._smoothed: list[float] = []
        self._steps = 0
        self.slow: Slow | None = None

    def observe(self, seconds: Sequence[float]) -> Slow | None:
        """Take in a step's times by rank; returns a straggler when it becomes one."""
        if len(seconds) != len(self._smoothed):
            self._smoothed, self._steps, self.slow = list(seconds), 0, None
        self._steps += 1
        if self._steps <= STEPS_COLD:
            self._smoothed = list(seconds)
        self._smoothed = [old + WEIGHT * (new - old) for old, new in zip(self._smoothed, seconds, strict=True)]
        if self._steps < STEPS_MIN or len(seconds) < 2:
            return None
        before, self.slow = self.slow, self._judge()
        is_news = self.slow is not None and (before is None or before.rank != self.slow.rank)
        return self.slow if is_news else None

    def _judge(self) -> Slow | None:
        times = sorted(self._smoothed)
        median = times[(len(times) - 1) // 2]
        rank = max(range(len(self._smoothed)), key=self._smoothed.__getitem__)
        worst = self._smoothed[rank]
        is_slow = worst > RATIO * median and worst - median > SECONDS_MIN
        return Slow(rank, worst, max(median, 1e-9)) if is_slow else None
