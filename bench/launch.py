"""What a launcher costs, beside torchrun: start and end of two workers that do nothing, and memory while they run.

    python -m bench.launch                  a table
    python -m bench.launch --repeats 3      fewer repeats
    python -m bench.launch --json PATH      the same figures as JSON

The time is that of the whole command, from the start of its process to its end. The repeats of both sides take turns,
and a figure is the median of its repeats. Both sides have had one start before, so that files are in memory and
Python's bytecode is written.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from bench.harness import Case, Results, attempt, median, save
from bench.scripts.jobs import NAME_SERVER, SCRIPT

REPEATS, REPEATS_FULL = 9, 21
#: Memory hardly varies.
MEMORY_REPEATS = 3
#: A start is a fifth of torchrun's, or less.
RATIO_MIN = 5.0
AGENT_MB_MAX = 40.0
SLEEP_S, CAP_S = 120, 120.0
#: What an agent holds once its workers run and nothing has happened for a moment.
SETTLE_S = 1.0
OURS, TORCH = "holdfast", "torchrun"
COMMANDS = {
    OURS: (sys.executable, "-m", "holdfast", "launch", "--quiet"),
    TORCH: (sys.executable, "-m", "torch.distributed.run", "--standalone"),
}
TWO = ("--nproc-per-node", "2")
EMPTY, IMPORTS = str(SCRIPT.with_name("empty.py")), str(SCRIPT.with_name("imports.py"))


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took from start to end, its workers included."""

    wall_s: float
    cpu_s: float


def run(full: bool) -> Results:
    """Measure all of it."""
    return measure(REPEATS_FULL if full else REPEATS)


def measure(repeats: int) -> Results:
    """Measure with so many repeats on each side."""
    sides = [OURS, TORCH] if importlib.util.find_spec("torch") else [OURS]
    cases: list[Case] = []
    starts = {
        "two empty Python workers": (*TWO, EMPTY),
        "two programs (--no-python true)": (*TWO, "--no-python", "true"),
    }
    for name, arguments in starts.items():
        cases += attempt(name, functools.partial(start_cases, name, arguments, sides, repeats, RATIO_MIN))
    if TORCH in sides:
        # Nothing is promised here, and a repeat takes seconds.
        name, fewer = "two workers that import torch", max(3, repeats // 3)
        cases += attempt(name, lambda: start_cases(name, (*TWO, IMPORTS), sides, fewer, None))
    else:
        cases.append(Case.missing(TORCH, "torch is not installed"))
    cases += attempt("memory", lambda: memory_cases(sides))
    return Results("a launcher's own cost, medians", cases, TORCH if TORCH in sides else "")


# -- time ----------------------------------------------------------------------------------------------------


def start_cases(
    name: str, arguments: Sequence[str], sides: Sequence[str], repeats: int, ratio_min: float | None
) -> list[Case]:
    """Start and end the same workers under both launchers, in turns."""
    costs: dict[str, list[Cost]] = {side: [] for side in sides}
    for side in sides:
        start_and_end(side, arguments)
    for repeat in range(repeats):
        for side in sides if repeat % 2 else reversed(sides):
            costs[side].append(start_and_end(side, arguments))
    walls = {side: [cost.wall_s for cost in values] for side, values in costs.items()}
    cpus = {side: [cost.cpu_s for cost in values] for side, values in costs.items()}
    return [
        beside(f"{name}, start to end", walls, "s", ratio_min),
        beside("... processor time, the workers' included", cpus, "s", None),
    ]


def start_and_end(side: str, arguments: Sequence[str]) -> Cost:
    """Run a command to its end."""
    start = time.perf_counter()
    process = start_launcher(side, arguments)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(process.args)} ended with {process.returncode}")  # type: ignore[arg-type]
    return Cost(wall_s, usage.ru_utime + usage.ru_stime)


def start_launcher(side: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a launcher and discard its output."""
    environ = {**os.environ, **NAME_SERVER, "TMPDIR": scratch().name}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    return subprocess.Popen(
        [*COMMANDS[side], *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
    )


@functools.cache
def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return the folder for what launchers leave, logs above all; it goes with this process."""
    return tempfile.TemporaryDirectory(prefix="holdfast-bench-")


# -- memory --------------------------------------------------------------------------------------------------


def memory_cases(sides: Sequence[str]) -> list[Case]:
    """Look at the memory of agents whose two workers sleep."""
    agents = {side: [sleeping_agent_mb(side) for _ in range(MEMORY_REPEATS)] for side in sides}
    first = beside("memory of the agent while two workers sleep", agents, "MB", None)
    ours = median(agents[OURS])
    cases = [replace(first, target=f"≤ {AGENT_MB_MAX:g} MB", ok=ours <= AGENT_MB_MAX)]
    if TORCH in sides:
        trees = {side: [torch_job_mb(side)] for side in sides}
        name = "... of all processes, two workers with torch"
        cases.append(beside(name, trees, "MB", None, "pages that several share are counted once"))
    return cases


def sleeping_agent_mb(side: str) -> float:
    """Return the memory of an agent whose workers are two sleeping programs."""

    def is_ready(agent: psutil.Process) -> bool:
        names = [child.name() for child in agent.children(recursive=True)]
        return names.count("sleep") == 2

    return look_at(side, (*TWO, "--no-python", "sleep", str(SLEEP_S)), is_ready, rss_mb)


def torch_job_mb(side: str) -> float:
    """Return the memory of a whole job whose two workers have imported torch."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        return look_at(side, (*TWO, IMPORTS, folder), lambda _: len(list(Path(folder).iterdir())) == 2, tree_mb)


def look_at(
    side: str,
    arguments: Sequence[str],
    is_ready: Callable[[psutil.Process], bool],
    look: Callable[[psutil.Process], float],
) -> float:
    """Start a launcher, look at it once its workers are ready, and end it."""
    process = start_launcher(side, arguments)
    try:
        agent = psutil.Process(process.pid)
        wait_until(lambda: is_ready(agent))
        time.sleep(SETTLE_S)
        return look(agent)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(CAP_S)


def rss_mb(process: psutil.Process) -> float:
    """Return the resident memory of one process."""
    return float(process.memory_info().rss) / 1e6


def tree_mb(process: psutil.Process) -> float:
    """Return the memory of a process and all below it, pages that several share counted once."""
    return sum(each.memory_full_info().pss for each in [process, *process.children(recursive=True)]) / 1e6


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what must come about."""
    until = time.monotonic() + CAP_S
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError("the workers did not start")
        time.sleep(0.05)


# -- figures -------------------------------------------------------------------------------------------------


def beside(name: str, figures: dict[str, list[float]], unit: str, ratio_min: float | None, note: str = "") -> Case:
    """Put the medians of both sides together."""
    theirs = median(figures[TORCH]) if TORCH in figures else None
    said = "; ".join(f"{'ours' if side == OURS else side} {quartiles(values)}" for side, values in figures.items())
    note = f"{said}{'; ' if note else ''}{note}"
    print(f"  {name}: {note}", file=sys.stderr, flush=True)
    return Case.beside(name, median(figures[OURS]), theirs, unit, less_is_better=True, ratio_min=ratio_min, note=note)


def quartiles(values: Sequence[float]) -> str:
    """Say where the middle half of the values lies."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{len(values)} runs, middle half {low:.3g} to {high:.3g}"


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.launch", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS, help="on each side (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    results = measure(options.repeats)
    print(results)
    if options.json:
        save(options.json, {"launch": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
