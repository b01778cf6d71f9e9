"""What the page's server knows: runs that are looked at again and again, jobs, logs, stacks; and kills, if allowed."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.errors import HoldfastError, UsageError
from holdfast.failures.stacks import merge, odd_ones, render
from holdfast.page.describe import detail, summary
from holdfast.runner.api import get_runner
from holdfast.view.reading import LiveRun
from holdfast.view.top import Seen
from holdfast.view.watching import Watch

#: How old what was seen may be before runs are looked at again: several browsers share one look.
FRESH_S = 0.8
#: How often jobs are listed: a cluster's scheduler does not like to be asked all the time.
JOBS_EVERY_S = 5.0
SAMPLES_MAX = 600
LOGS_MAX, LOG_BYTES_MAX = 500, 256 * 1024


class Watcher:
    """Answers the page's questions; from any thread."""

    def __init__(self, *, allow_kill: bool = False) -> None:
        self.allow_kill = allow_kill
        self._lock = threading.RLock()
        self._watch = Watch(ended_shown_s=float("inf"))
        self._seen: list[Seen] = []
        self._seen_at = float("-inf")
        self._samples: dict[str, deque[dict[str, Any]]] = {}
        self._jobs_lock = threading.Lock()
        self._jobs: list[dict[str, Any]] = []
        self._jobs_at = float("-inf")

    # -- runs ----------------------------------------------------------------------------------------------------------

    def runs(self) -> list[dict[str, Any]]:
        """Describe all runs, live ones first."""
        with self._lock:
            self._look()
            return [summary(seen) for seen in self._seen]

    def run(self, name: str) -> dict[str, Any]:
        """Describe one run in full; raises `UsageError` if there is none of this name."""
        with self._lock:
            self._look()
            seen = next((each for each in self._seen if each.state.run == name), None)
            run = self._open(name)
            if seen is None:
                raise UsageError(f"run '{name}' has left the list of the newest runs")
            told = detail(seen, list(self._samples.get(name, ())), run.folder)
            agents = run.agents_here() if seen.state.is_live else {}
            return {**told, "agents": [{"pid": pid, "ranks": ranks} for pid, ranks in agents.items()]}

    def _look(self) -> None:
        if time.monotonic() - self._seen_at < FRESH_S:
            return
        self._seen, self._seen_at = self._watch.look(), time.monotonic()
        for seen in self._seen:
            if seen.state.is_live:
                self._sample(seen)

    def _sample(self, seen: Seen) -> None:
        """Keep the figures of a live run, for curves."""
        state, rows = seen.state, seen.rows
        rates = [row.rate for row in rows if row.rate is not None]
        memory = [row.rss_bytes for row in rows if row.rss_bytes is not None]
        gpus = [row.gpu_percent for row in rows if row.gpu_percent is not None]
        sample = {
            "after_s": round(state.end - state.begin, 1),
            "rate": median(rates) if rates else None,
            "goodput": state.account.goodput if state.account.measured else None,
            "rss_bytes": sum(memory) if memory else None,
            "gpu_percent": sum(gpus) / len(gpus) if gpus else None,
        }
        self._samples.setdefault(state.run, deque(maxlen=SAMPLES_MAX)).append(sample)

    def _open(self, name: str) -> LiveRun:
        self._look()
        run = self._watch.run(name)
        if run is None:
            raise UsageError(f"there is no run '{name}' on this host")
        return run

    # -- what is asked for on a button ---------------------------------------------------------------------------------

    def stacks(self, name: str) -> dict[str, Any]:
        """Return the merged stacks of a live run, as text, with the ranks that are elsewhere than the others."""
        with self._lock:
            run = self._open(name)
        groups = merge(run.stacks())
        if not groups:
            raise UsageError("this run has no workers on this host at the moment")
        return {"text": render(groups), "odd": list(odd_ones(groups)), "time": time.time()}

    def kill(self, name: str, rank: int | None = None, agent: int | None = None) -> dict[str, Any]:
        """Kill one worker of a live run, or one of its agents with all its workers, by SIGKILL."""
        if not self.allow_kill:
            raise UsageError("this page is read-only; `holdfast page --allow-kill` lets it kill workers")
        with self._lock:
            run = self._open(name)
            run.look()
            if rank is not None:
                pid = next((each.pid for each in run.workers_here() if each.rank == rank), None)
            else:
                pid = agent if agent in run.agents_here() else None
        if pid is None or pid == os.getpid():
            raise UsageError("this run has no such process on this host any more")
        os.kill(pid, signal.SIGKILL)
        return {"killed": pid}

    # -- logs ----------------------------------------------------------------------------------------------------------

    def logs(self, name: str) -> list[dict[str, Any]]:
        """List the log files of a run that hold anything, the newest attempt first."""
        top, own = self._folders(name)
        found = []
        for path in sorted((path for folder in own for path in folder.rglob("*.log")), reverse=True)[:LOGS_MAX]:
            size = path.stat().st_size
            if size:
                found.append({"file": str(path.relative_to(top)), "bytes": size})
        return found

    def log(self, name: str, file: str) -> dict[str, Any]:
        """Return the end of one log file."""
        top, own = self._folders(name)
        path = (top / file).resolve()
        if not any(path.is_relative_to(folder) for folder in own) or path.suffix != ".log" or not path.is_file():
            raise UsageError(f"this run has no log '{file}'")
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            opened.seek(max(size - LOG_BYTES_MAX, 0))
            text = opened.read(LOG_BYTES_MAX).decode(errors="replace")
        return {"file": file, "bytes": size, "cut": size > LOG_BYTES_MAX, "text": text}

    def _folders(self, name: str) -> tuple[Path, list[Path]]:
        """Return the folder that holds a run's log folders, maybe beside those of other runs, and these folders."""
        with self._lock:
            run = self._open(name)
            return Path(run.folder).resolve(), [journal.absolute().parent.resolve() for journal in run.journals]

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[dict[str, Any]]:
        """List the jobs of every scheduler that can tell, the newest first."""
        with self._jobs_lock:  # a cluster may take its time to answer; runs are told meanwhile
            if time.monotonic() - self._jobs_at >= JOBS_EVERY_S:
                self._jobs, self._jobs_at = _list_jobs(), time.monotonic()
            return self._jobs


def _list_jobs() -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with get_runner() as runner:
        for scheduler in runner.scheduler_backends():
            try:
                jobs = runner.list(scheduler)
            except (HoldfastError, NotImplementedError, OSError) as error:
                logging.getLogger("holdfast").info("the scheduler '%s' cannot list jobs: %s", scheduler, error)
                continue
            for job in jobs:
                key = f"{job.app_id} {job.submitted_at}"  # two names may stand for one scheduler
                found.setdefault(
                    key,
                    {
                        "handle": job.app_handle,
                        "id": job.app_id,
                        "state": job.state.name,
                        "submitted": job.submitted_at,
                    },
                )
    return sorted(found.values(), key=lambda job: -(job["submitted"] or 0.0))
