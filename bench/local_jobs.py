"""Local jobs, many times: of `holdfast run utils.echo` every line must arrive, and nothing may be left behind.

    python -m bench.local_jobs                      1,000 runs, four at a time
    python -m bench.local_jobs --runs 50 --at-once 8

Each run is a process of its own, as at a prompt; its line is looked for in what it shows and in the job's log on disk.
Exits with 1 where a line or a state is missing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.specs import AppState

RUNS, AT_ONCE = 1000, 4
PATIENCE_S = 120.0


@dataclass
class Tally:
    """What the runs came to."""

    seconds: list[float] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)
    wrong_code: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


def run_once(home: Path, line: str, tally: Tally) -> None:
    """Run one echo and note what became of its line."""
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "run", "utils.echo", "--msg", line],
            env={**os.environ, "HOLDFAST_HOME": str(home)},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        tally.stuck.append(line)
        return
    tally.seconds.append(time.monotonic() - begun)
    if line not in f"{done.stdout}{done.stderr}":
        tally.not_shown.append(f"{line}: {done.stderr[-200:]}")
    if done.returncode != 0:
        tally.wrong_code.append(f"{line}: {done.returncode}")


def soak(runs: int, at_once: int) -> int:
    """Run them all, print what they came to, and return the exit code."""
    tally = Tally()
    lines = [f"line-{number:05d}-of-{runs}" for number in range(runs)]
    left = iter(lines)
    lock = threading.Lock()

    def work(home: Path) -> None:
        while True:
            with lock:
                line = next(left, None)
            if line is None:
                return
            run_once(home, line, tally)

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["HOLDFAST_KEEP_JOBS"] = str(2 * runs)
        threads = [threading.Thread(target=work, args=(home,)) for _ in range(at_once)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.monotonic() - begun
        scheduler = LocalScheduler("holdfast", home)
        jobs = scheduler.list()
        on_disk = {line for job in jobs for role in ("echo",) for line in scheduler.log_iter(job.app_id, role)}
    failed = [job.app_id for job in jobs if job.state is not AppState.SUCCEEDED]
    missing = [line for line in lines if line not in on_disk]
    print(
        f"{runs} runs, {at_once} at a time, {elapsed:.1f} s; one took {statistics.median(tally.seconds):.3f} s (median)"
    )
    for what, found in (
        ("lines not shown", tally.not_shown),
        ("lines not on disk", missing),
        ("wrong exit codes", tally.wrong_code),
        ("runs that hung", tally.stuck),
        ("jobs that did not succeed", failed),
        ("jobs missing from the list", [""] * (runs - len(jobs))),
    ):
        print(f"{what:<28} {len(found)}{f'  first: {found[0]}' if found else ''}")
    return int(bool(tally.not_shown or missing or tally.wrong_code or tally.stuck or failed or len(jobs) != runs))


def main(argv: list[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.local_jobs", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    options = parser.parse_args(argv)
    return soak(options.runs, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
