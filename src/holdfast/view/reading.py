"""Reading runs of this host: their journals, the beats of live workers, and what their processes use."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, UsageError
from holdfast.events.account import Steps
from holdfast.events.finding import Story, find_story
from holdfast.events.index import recent_runs
from holdfast.failures.stacks import Stack
from holdfast.timer.beats import read_progress
from holdfast.view.state import RunReader, RunState, Worker
from holdfast.workers import stacks

#: The file in a worker's log folder that it writes its stacks to when asked.
STACKS_FILE = "stacks.log"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a worker's process uses now: percent of one CPU since the last look, and bytes of memory."""

    cpu_percent: float
    rss_bytes: int


class LiveRun:
    """One run that can be looked at again and again."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._reader = RunReader()
        self._processes: dict[int, Any] = {}

    @property
    def folder(self) -> str:
        """The folder that holds its journals."""
        return self._story.folder

    @property
    def journals(self) -> list[Path]:
        """The journals that were read."""
        return self._story.paths

    def look(self) -> RunState:
        """Read what is new and return where the run stands."""
        over = self._story.is_over()  # asked before reading: what was written before the end is then read
        for told in self._story.read():
            self._reader.take(told)
        over = over and self._story.is_over()
        return self._reader.state(time.time(), over=over, live={} if over else self.progress())

    def progress(self) -> dict[int, Steps]:
        """Return how far the live workers of this host are, by rank."""
        files: dict[str, dict[int, int]] = {}
        for worker in self.workers_here():
            files.setdefault(worker.beats, {})[worker.rank] = worker.local_rank
        found: dict[int, Steps] = {}
        for path, slots in files.items():
            if path:
                for rank, made in read_progress(path, slots).items():
                    found[rank] = Steps(made.steps, made.first_at, made.last_at, made.first_step, made.last_step)
        return found

    def workers_here(self) -> list[Worker]:
        """Return the live workers that are processes of this host."""
        here = socket.gethostname()
        return [worker for _, worker in sorted(self._reader.workers.items()) if worker.host == here]

    def agents_here(self) -> dict[int, list[int]]:
        """Return the live agents of this host: the ranks of each, none between two rounds, by its process id."""
        here = socket.gethostname()
        found: dict[int, list[int]] = {pid: [] for host, pid in self._reader.live_agents() if host == here and pid}
        for worker in self.workers_here():
            found.setdefault(worker.agent, []).append(worker.rank)
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def usage(self) -> dict[int, Usage]:
        """Return what the workers of this host use, by rank."""
        import psutil

        found = {}
        known, self._processes = self._processes, {}
        for worker in self.workers_here():
            try:
                process = known.get(worker.pid) or psutil.Process(worker.pid)
                found[worker.rank] = Usage(process.cpu_percent(), process.memory_info().rss)
            except psutil.Error:
                continue  # it has ended, or belongs to another user
            self._processes[worker.pid] = process
        return found

    def stacks(self) -> dict[int, Stack]:
        """Return where the workers of this host are, by rank."""
        workers = self.workers_here()
        taken = stacks.take((each.pid for each in workers), {each.pid: stacks_file(each) for each in workers})
        return {each.rank: taken[each.pid] for each in workers}


def open_run(name: str, *, everything: bool = False) -> LiveRun:
    """Open a run by its id, a journal or a log folder; the newest one without a name."""
    return LiveRun(find_story(name, everything=everything))


def open_recent(count: int) -> dict[str, LiveRun]:
    """Open the newest runs of this host, newest first; those whose journals are gone are left out."""
    return dict(_opened(recent_runs(count)))


def _opened(names: Iterable[str]) -> Iterable[tuple[str, LiveRun]]:
    for name in names:
        try:
            yield name, open_run(name)
        except HoldfastError:
            continue  # its log folder was removed


def stacks_file(worker: Worker) -> str:
    """Return the file that a worker writes its stacks to: in the newest attempt that has this worker."""
    return str(log_folder(worker) / STACKS_FILE) if worker.logs else ""


def log_folder(worker: Worker) -> Path:
    """Return the folder with a worker's logs; a worker that was replaced has one in a later attempt."""
    own = Path(worker.logs) / str(worker.local_rank)
    later = [each for each in own.parent.parent.glob(f"attempt_*/{worker.local_rank}") if each.is_dir()]
    return max(later, key=lambda folder: _attempt(folder.parent.name), default=own)


def _attempt(name: str) -> int:
    number = name.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1


def the_live_one(name: str) -> LiveRun:
    """Open the run that is named, or the newest live one; raises `UsageError` if it is over."""
    from holdfast.events.index import live_run

    run = name or live_run()
    if not run:
        raise UsageError("no run is live on this host; `holdfast runs` lists those that have ended")
    found = open_run(run)
    state = found.look()
    if not state.is_live:
        raise UsageError(f"only a live run can be looked into; {state.ending(time.time())}")
    return found
