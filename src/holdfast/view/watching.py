"""Looking at several runs again and again: which there are, where they stand, and what their ranks do."""

from __future__ import annotations

import time

from holdfast.errors import HoldfastError
from holdfast.events.index import recent_runs
from holdfast.view.gpus import GpuUse, read_gpus
from holdfast.view.reading import LiveRun, open_run
from holdfast.view.state import RunState
from holdfast.view.top import Rates, Row, Seen

#: How many of the newest runs are looked at, and how long one that has ended stays in view.
RUNS_MAX, ENDED_SHOWN_S = 20, 600.0
#: How often nvidia-smi is asked, which takes a moment.
GPUS_EVERY_S = 3.0


class Watch:
    """The runs of this host, or the one that is named; runs that ended longer ago than `ended_shown_s` are left out."""

    def __init__(self, name: str = "", *, ended_shown_s: float = ENDED_SHOWN_S) -> None:
        self._name = name
        self._ended_shown_s = ended_shown_s
        self._runs: dict[str, LiveRun] = {}
        self._states: dict[str, RunState] = {}
        self._rates: dict[str, Rates] = {}
        self._gpus: dict[int, GpuUse] = {}
        self._gpus_at = float("-inf")

    def look(self) -> list[Seen]:
        """Return the runs: live ones first, the newest first."""
        self._find()
        for name, run in list(self._runs.items()):
            state = self._states.get(name)
            if state is None or state.is_live:  # one that has ended does not change any more
                try:
                    self._states[name] = run.look()
                except HoldfastError:
                    del self._runs[name]  # its journal cannot be read any more
        now = time.time()
        known = [(name, self._states[name]) for name in self._runs]
        shown = [
            (name, state)
            for name, state in known
            if self._name or state.is_live or state.end > now - self._ended_shown_s or name == known[0][0]
        ]
        shown.sort(key=lambda pair: (not pair[1].is_live, -pair[1].begin))
        if any(state.is_live for _, state in shown) and time.monotonic() - self._gpus_at >= GPUS_EVERY_S:
            self._gpus, self._gpus_at = read_gpus(), time.monotonic()
        return [Seen(state, self._rows(name, state, now)) for name, state in shown]

    def run(self, name: str) -> LiveRun | None:
        """Return a run that the last look has found."""
        return self._runs.get(name)

    def _find(self) -> None:
        names = [self._name] if self._name else recent_runs(RUNS_MAX)
        for name in names:
            if name not in self._runs:
                try:
                    self._runs[name] = open_run(name)
                except HoldfastError:
                    if self._name:
                        raise
        self._runs = {name: self._runs[name] for name in names if name in self._runs}

    def _rows(self, name: str, state: RunState, now: float) -> list[Row]:
        if not state.is_live:
            return []
        run = self._runs[name]
        usage, progress = run.usage(), run.progress()
        rates = self._rates.setdefault(name, Rates()).take(now, {rank: made.steps for rank, made in progress.items()})
        rows = []
        for rank, worker in sorted(state.workers.items()):
            made, used, gpu = progress.get(rank), usage.get(rank), self._gpus.get(worker.pid)
            rows.append(
                Row(
                    rank,
                    worker.host,
                    worker.pid,
                    step=None if made is None else made.steps if made.last_step is None else made.last_step,
                    rate=rates.get(rank),
                    silent_s=None if made is None else max(now - made.last_at, 0.0),
                    cpu_percent=None if used is None else used.cpu_percent,
                    rss_bytes=None if used is None else used.rss_bytes,
                    gpu_percent=None if gpu is None else gpu.busy_percent,
                    gpu_bytes=None if gpu is None else gpu.memory_bytes,
                )
            )
        return rows
