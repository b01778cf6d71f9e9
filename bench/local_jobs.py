"""Local jobs, many times: of `holdfast run utils.echo` every line must arrive, and nothing may be left behind.

    python -m bench.local_jobs                      100 runs, four at a time
    python -m bench.local_jobs --runs 50 --at-once 8

Each run is a process of its own, as at a prompt; its line is looked for in what it shows and in the job's log on disk.
Exits with 1 where a line or a state is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Case, Results, median, spread
from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.specs import AppState

RUNS, RUNS_FULL, AT_ONCE = 100, 1000, 4
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


def run(full: bool) -> Results:
    """Run the usual number of them."""
    return soak(RUNS_FULL if full else RUNS, AT_ONCE)


def soak(runs: int, at_once: int) -> Results:
    """Run them all and say what they came to."""
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
    rate = f"{runs / elapsed:.3g} a second, {at_once} at a time"
    return Results(
        f"local jobs: {runs:,} runs of `holdfast run utils.echo`",
        [
            Case.seen("runs", runs, "", rate),
            Case.seen("one run, from prompt to prompt", *took(tally.seconds)),
            none_of("lines not shown", tally.not_shown),
            none_of("lines not on disk", missing),
            none_of("wrong exit codes", tally.wrong_code),
            none_of("runs that hung", tally.stuck),
            none_of("jobs that did not succeed", failed),
            Case.at_most("jobs missing from the list", runs - len(jobs), "", 0),
        ],
    )


def took(seconds: list[float]) -> tuple[float | None, str, str]:
    """Return the median of the runs that ended, its unit and the spread."""
    return (median(seconds), "s", spread(seconds, "s")) if seconds else (None, "s", "none ended")


def none_of(what: str, found: list[str]) -> Case:
    """Return the row of something that must not happen, with the first example of it."""
    return Case.at_most(what, len(found), "", 0, f"first: {found[0]}" if found else "")


def main(argv: list[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.local_jobs", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    options = parser.parse_args(argv)
    results = soak(options.runs, options.at_once)
    print(results)
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
