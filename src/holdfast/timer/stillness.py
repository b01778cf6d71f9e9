"""Stillness: how long a gang's workers have done nothing at all, judged by what the kernel counts. Pure.

A script that never calls `heartbeat()` still shows whether it moves: it uses CPU time, its main thread reads or
writes, or its main thread wakes up often. A worker that does none of these between two looks was still, unless it is
ready to run: on a busy host it may compute and get no CPU time. Background
threads that poll now and then (a progress bar, a watchdog of a collective library) stay below the limits on purpose.

A worker that waits actively, such as one that spins in a CUDA call, uses CPU time and counts as moving: it is never
judged here. So stillness can miss a hang, and should never invent one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

#: Below this share of one core a worker, with all its processes, computes nothing that matters.
CPU_SHARE_MAX = 0.05
#: The kernel counts CPU time in ticks; this much may fall into any interval, however short.
CPU_SLACK_S = 0.02
#: A main thread that waits wakes up less often than this (wake-ups per second, and as many in any interval).
WAKE_UPS_PER_S_MAX = 1.0
WAKE_UPS_SLACK = 2


@dataclass(frozen=True, slots=True)
class Signs:
    """What the kernel has counted for one worker so far; each number only grows while the worker lives."""

    #: The process that was looked at: a replaced worker begins anew.
    pid: int
    #: CPU seconds of the worker and the processes of its session.
    cpu_s: float
    #: How often the worker's main thread has waited and woken up.
    wake_ups: int
    #: Bytes that its main thread has read and written, and the number of calls that did so.
    io: int
    #: Whether a process of its session ran, or waited for nothing but a CPU, when it was looked at.
    ready: bool = False

    def moved_since(self, before: Signs, elapsed_s: float) -> bool:
        """Return whether the worker computed, wrote or communicated between two looks."""
        return (
            self.pid != before.pid
            or self.ready
            or self.io != before.io
            or self.cpu_s - before.cpu_s > CPU_SHARE_MAX * elapsed_s + CPU_SLACK_S
            or self.wake_ups - before.wake_ups > WAKE_UPS_PER_S_MAX * elapsed_s + WAKE_UPS_SLACK
        )


class Stillness:
    """Remembers since when all workers have been still."""

    def __init__(self) -> None:
        self._signs: dict[int, Signs] = {}
        self._looked = 0.0
        self._still_since = -math.inf

    def look(self, signs: Mapping[int, Signs], now: float) -> float:
        """Take what all workers that run show now, by rank; return how long all of them have been still.

        A worker that has ended since the last look has moved too: the others may just have been waiting for it.
        """
        elapsed_s = now - self._looked
        if signs.keys() != self._signs.keys() or any(
            sign.moved_since(self._signs[rank], elapsed_s) for rank, sign in signs.items()
        ):
            self._still_since = now
        self._signs, self._looked = dict(signs), now
        return now - self._still_since
