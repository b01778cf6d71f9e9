"""When a template may be prepared beside workers that run: once they leave a core to it. Pure.

Workers import for a second or two when they are started, as many at a time as there are workers. A template that
imports at the same time makes them slower where they have no core to spare. So it waits until they leave one, and no
longer than `PATIENCE_S`: a job that always uses every core would otherwise never have a template.
"""

from __future__ import annotations

#: How often to look while workers run, and how long no worker may have run.
BUSY_LOOK_S, IDLE_LOOK_S = 0.25, 1.0
#: How much of a core must be left over.
SPARE_CORES = 0.75
PATIENCE_S = 20.0
#: From so many workers to a core on, importing once and then forking is quicker than to import in every worker at the
#: same time; `python -m bench.launch` measures both.
FORK_FIRST_WORKERS_PER_CORE = 2.0


class SpareCores:
    """Says, once, that a core is left over, from what the workers have used of the processors."""

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._deadline: float | None = None
        self._looked_at = 0.0
        self._used_s = 0.0
        self._window_s = IDLE_LOOK_S

    def begin(self, now: float, *, workers: bool) -> None:
        """Watch from now on; `workers`: they have just been started, else none runs."""
        self._deadline = now + PATIENCE_S
        self._looked_at, self._used_s = now, 0.0
        self._window_s = BUSY_LOOK_S if workers else IDLE_LOOK_S

    def look(self, used_s: float, now: float) -> bool:
        """Take the processor time that the workers have used so far; returns whether a core is left over."""
        span_s = now - self._looked_at
        if self._deadline is None or span_s < self._window_s:
            return False
        left = self._cores - (used_s - self._used_s) / span_s
        self._looked_at, self._used_s = now, used_s
        if left < SPARE_CORES and now < self._deadline:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Watch no longer."""
        self._deadline = None

    def wakeup(self) -> float | None:
        """Say when to look again, or None where nothing is watched."""
        return None if self._deadline is None else self._looked_at + self._window_s


def forks_first(workers: int, cores: float) -> bool:
    """Whether even the first workers are better forked from a template than started at once."""
    return workers >= FORK_FIRST_WORKERS_PER_CORE * cores
