"""Copies of a model that are split over workers: how long the others stand still, and how soon all are back.

    python -m bench.replicas             every case, a table
    python -m bench.replicas --quick     a few trials of each

Two copies of two workers train over gloo in steps of about 20 ms, under `holdfast launch`. Every worker has 1 GiB of
state. One worker is killed; the agent ends the other one of its copy and starts both anew, and each takes its part from
its counterpart. The stall is the time from the kill to the other copy's next finished step; full size is the time from
the kill to the first step that both copies have finished.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from bench.harness import Case, Results, attempt, median, save, spread

HERE = Path(__file__).parent
NEEDS = ("torch",)
SCRIPT = HERE / "scripts" / "elastic_replica.py"
PRELOAD = "torch,torch._dynamo,torch.distributed.fsdp,holdfast.torch.run"
WORKERS, REPLICA = 4, 2

TRIALS, TRIALS_QUICK = 10, 3
#: Each worker has so much state; a transfer takes several times that for a moment.
STATE_MIB, MEMORY_TIMES = 1024, 5
SLEEP_S = 0.018
START_CAP_S, CAP_S = 300.0, 120.0
CALM_S = (0.3, 0.6)
STALL_LIMIT_S, COST_LIMIT_PERCENT = 0.5, 1.0
COST_BLOCKS, COST_BLOCKS_QUICK, COST_STEPS = 40, 8, 50


class Job:
    """One launch, and what its workers have written to their logs."""

    def __init__(self, **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-replicas-")
        self.folder = Path(self._folder.name)
        told = json.dumps({"folder": str(self.folder), "sleep_s": SLEEP_S, **options})
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_HOME": str(self.folder / "home")}
        launch = ["launch", "--nproc-per-node", str(WORKERS), "--max-restarts", "1000", "--preload", PRELOAD]
        command = [sys.executable, "-m", "holdfast", *launch, "--log-dir", str(self.folder / "logs"), str(SCRIPT), told]
        with (self.folder / "launch.log").open("wb") as log:
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)

    def lines(self, pid: int) -> list[str]:
        """Return what a worker has written."""
        path = self.folder / f"worker-{pid}"
        return path.read_text().splitlines() if path.exists() else []

    def notes(self, pid: int) -> list[dict[str, Any]]:
        """Return what a worker has written beside its steps."""
        return [json.loads(line[2:]) for line in self.lines(pid) if line.startswith("#")]

    def steps(self, pid: int) -> list[tuple[float, int, int]]:
        """Return what a worker has done: when, which step, with how many copies."""
        rows = [line.split() for line in self.lines(pid) if not line.startswith("#")]
        return [(float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    def workers(self) -> dict[int, int]:
        """Return the pid of each rank's present worker."""
        found: dict[int, int] = {}
        for path in sorted(self.folder.glob("worker-*"), key=lambda path: path.stat().st_mtime):
            pid = int(path.name.partition("-")[2])
            if psutil.pid_exists(pid) and (notes := self.notes(pid)):
                found[notes[0]["rank"]] = pid
        return found

    def wait_step(self, pid: int, after: float, copies: int) -> float | None:
        """Return when a worker finished its first step after a moment with so many copies; None if it does not."""
        deadline = time.monotonic() + CAP_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for at, _, count in self.steps(pid):
                if at > after and count == copies:
                    return at
            time.sleep(0.01)
        return None

    def wait_full(self, after: float, cap_s: float) -> dict[int, int] | None:
        """Wait for a step of both copies on all workers; returns their pids, None if it does not come."""
        deadline = time.monotonic() + cap_s
        while time.monotonic() < deadline and self.process.poll() is None:
            pids = self.workers()
            if len(pids) == WORKERS and all(
                any(at > after and copies == WORKERS // REPLICA for at, _, copies in self.steps(pid))
                for pid in pids.values()
            ):
                return pids
            time.sleep(0.02)
        return None

    def said(self) -> str:
        """Return the end of what the launch said."""
        return (self.folder / "launch.log").read_text()[-800:]

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()


def strike(mib: int, trials: int) -> tuple[list[float], list[float], int]:
    """Kill a worker of the second copy again and again; returns stalls, times to full size, and steps lost."""
    stalls, fulls, lost = [], [], 0
    with Job(mib=mib) as job:
        pids = job.wait_full(0.0, START_CAP_S)
        for _ in range(trials):
            if pids is None:
                raise RuntimeError(f"the job did not come to full size: {job.said()}")
            time.sleep(random.uniform(*CALM_S))
            at = time.monotonic()
            os.kill(pids[random.randrange(REPLICA, WORKERS)], signal.SIGKILL)
            survivor = pids[0]
            alone = job.wait_step(survivor, at, 1)
            together = job.wait_step(survivor, alone, WORKERS // REPLICA) if alone is not None else None
            if alone is None or together is None:
                raise RuntimeError(f"the copies did not separate and come together again: {job.said()}")
            pids = job.wait_full(together, CAP_S)
            steps = job.steps(survivor)
            stalls.append(alone - at)
            fulls.append(together - at)
            numbers = [number for _, number, _ in steps]
            lost += sum(after != before + 1 for before, after in itertools.pairwise(numbers))
    return stalls, fulls, lost


def fault_cases(quick: bool) -> Iterator[Case]:
    room_mib = psutil.virtual_memory().available // 2**20 // (WORKERS * MEMORY_TIMES)
    mib = min(STATE_MIB, max(64, room_mib // 64 * 64))
    stalls, fulls, lost = strike(mib, TRIALS_QUICK if quick else TRIALS)
    name = f"one of four killed, {mib} MiB of state each"
    yield Case.at_most(f"{name}: the other copy's stall", median(stalls), "s", STALL_LIMIT_S, spread(stalls, "s"))
    yield Case.seen(f"{name}: back to full size", median(fulls), "s", spread(fulls, "s"))
    yield Case.at_most(f"{name}: steps lost or done twice", lost, "", 0)


def cost_cases(quick: bool) -> list[Case]:
    """What a step costs more than the same sums without us, in blocks that take turns in the same processes."""
    blocks = COST_BLOCKS_QUICK if quick else COST_BLOCKS
    with Job(mib=1, plain_every=COST_STEPS, blocks=blocks) as job:
        deadline = time.monotonic() + START_CAP_S + blocks * COST_STEPS * 0.2
        notes: list[dict[str, Any]] = []
        while sum("plain" in note for note in notes) < blocks and time.monotonic() < deadline:
            time.sleep(0.5)
            pid = job.workers().get(0)
            notes = job.notes(pid) if pid is not None else notes
            if job.process.poll() is not None:
                break
        found = [note["elastic"] for note in notes if "elastic" in note]
        plain = [note["plain"] for note in notes if "plain" in note]
        if len(plain) < blocks:
            raise RuntimeError(f"the cost was not measured: {job.said()}")
    # The first block also makes the round and fills caches.
    pairs = list(zip(found[1:], plain[1:], strict=False))
    ratios = [100 * (mine["wall_s"] / theirs["wall_s"] - 1) for mine, theirs in pairs]
    more = [1e6 * (mine["cpu_s"] - theirs["cpu_s"]) for mine, theirs in pairs]
    wall = [1000 * median([side["wall_s"] for side in sides]) for sides in zip(*pairs, strict=True)]
    note = f"{wall[1]:.2f} ms plain, {wall[0]:.2f} ms ours; {spread(ratios, '%')}"
    return [
        Case.at_most("cost of a step of 20 ms without faults", median(ratios), "%", COST_LIMIT_PERCENT, note),
        Case.seen("... processor time of a leader", median(more), "µs", spread(more, "µs")),
    ]


def run(full: bool) -> Results:
    """Measure everything."""
    return measure(quick=not full)


def measure(*, quick: bool) -> Results:
    cases = [*attempt("cost of a step", lambda: cost_cases(quick))]
    cases += attempt("a worker killed", lambda: fault_cases(quick))
    return Results("Two copies of a model, each split over two workers, gloo, steps of 20 ms", cases)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    results = measure(quick=chosen.quick)
    print(results)
    if not chosen.quick:
        save(HERE / "results.json", {"replicas": results})
