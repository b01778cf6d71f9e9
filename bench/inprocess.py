"""Recovery inside the process, beside torchft's: how long survivors stand still, and how soon all are back.

    python -m bench.inprocess             every case, a table
    python -m bench.inprocess --quick     a few trials of each

Two workers train a small model over gloo in steps of about 10 ms. One of them is killed; another is forked at once from
a process that has imported everything, on both sides alike; under `holdfast launch` the agent does that. The stall is
the time from the fault to the survivor's next finished step; full size is the time from the fault to the newcomer's
first finished step with both. torchft has an environment of its own, named by $TORCHFT_PYTHON, or made on first use
(see `_rivals`).
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
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench import _rivals
from bench.harness import Case, Results, attempt, median, save, spread

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
TORCHFT = "torchft==0.2.0"
TORCHFT_NEEDS = ("torch==2.13.0", "numpy")
NEEDS = ("torch",)

TRIALS, TRIALS_QUICK, THEIRS, THEIRS_SLOW = 30, 5, 10, 5
SLEEP_S = 0.008
START_CAP_S, CAP_S = 120.0, 60.0
CALM_S = (0.3, 0.6)
#: A job gets so many faults before a fresh one is started.
FAULTS_PER_JOB = 10
STALL_LIMIT_S, FULL_LIMIT_S, COST_LIMIT_PERCENT = 0.1, 0.5, 2.0
COST_BLOCKS, COST_BLOCKS_QUICK, COST_STEPS = 60, 15, 50


@dataclass(frozen=True)
class Side:
    """One way to train, as it is started."""

    name: str
    python: str
    script: str
    modules: tuple[str, ...]
    server: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


def holdfast(**options: Any) -> Side:
    modules = (
        "torch",
        "torch._dynamo",
        "torch.nn.parallel",
        "numpy",
        "holdfast.torch.run",
        "holdfast.train.membership",
    )
    return Side("holdfast", sys.executable, "elastic_holdfast.py", modules, (), options)


def torchft(python: str, *flags: str, **options: Any) -> Side:
    """torchft with flags of its lighthouse."""
    modules = ("torch", "torch._dynamo", "torch.nn.parallel", "torchft")
    server = (python, str(SCRIPTS / "lighthouse.py"), "--min_replicas", "1", *flags)
    return Side("torchft", python, "elastic_torchft.py", modules, server, options)


def find_torchft() -> str | None:
    """Return a Python that has torchft, made where it can be; None where it cannot be had."""
    named = os.environ.get("TORCHFT_PYTHON")
    if named:
        return named
    home = _rivals.environment(TORCHFT)
    if _rivals.has(home, "torchft") or _rivals.install(home, [*TORCHFT_NEEDS, TORCHFT]):
        return str(_rivals.python_of(home))
    return None


class RunningJob:
    """Workers by their pids, and what each has written to its log."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._folder = tempfile.TemporaryDirectory(prefix="bench-inprocess-")
        self.folder = Path(self._folder.name)
        self.workers: dict[int, Path] = {}
        self._processes: list[subprocess.Popen[str]] = []
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_HOME": str(self.folder / "home")}

    def start(self) -> int:
        """Have one more worker; returns its pid."""
        raise NotImplementedError

    def steps(self, pid: int) -> list[tuple[float, int, int]]:
        """Return what a worker has done: when, which step, with how many."""
        log = self.workers[pid]
        lines = log.read_text().splitlines() if log.exists() else []
        rows = [line.split() for line in lines if not line.startswith("#")]
        return [(float(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    def notes(self, pid: int) -> list[dict[str, Any]]:
        """Return what a worker has written beside its steps."""
        log = self.workers[pid]
        return [json.loads(line[2:]) for line in log.read_text().splitlines() if line.startswith("#")]

    def wait_step(self, pid: int, after: float, world_size: int | None, cap_s: float) -> float | None:
        """Return when a worker finished its first step after a moment, of this world size; None where it did not."""
        deadline = time.monotonic() + cap_s
        while time.monotonic() < deadline:
            for at, _, world in self.steps(pid):
                if at > after and world_size in (None, world):
                    return at
            time.sleep(0.01)
        return None

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for pid in self.workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()


class LaunchedJob(RunningJob):
    """Workers of `holdfast launch`, which replaces those that are killed or frozen."""

    def __init__(self, side: Side, *, kill_stopped: bool = False) -> None:
        super().__init__(side)
        del kill_stopped  # the agent does that
        told = {"folder": str(self.folder), "home": str(self.folder / "home"), "sleep_s": SLEEP_S, **side.options}
        command = [
            *(sys.executable, "-m", "holdfast", "launch", "--standalone", "--nproc-per-node", "2"),
            *("--max-restarts", "1000", "--preload", ",".join(side.modules), "--log-dir", str(self.folder / "logs")),
            *(str(SCRIPTS / side.script), json.dumps(told)),
        ]
        with (self.folder / "agent.err").open("w") as log:
            self._agent = subprocess.Popen(command, env=self._env, text=True, stdout=log, stderr=log)

    def start(self) -> int:
        """Wait for a worker that is not known yet; returns its pid."""
        deadline = time.monotonic() + START_CAP_S
        while time.monotonic() < deadline:
            for log in self.folder.glob("worker-*"):
                pid = int(log.name.partition("-")[2])
                if pid not in self.workers:
                    self.workers[pid] = log
                    return pid
            time.sleep(0.002)
        raise RuntimeError(f"the agent started no worker: {_errors(self)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._agent.terminate()  # it ends its workers itself
        try:
            self._agent.wait(CAP_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()
        super().__exit__(kind, error, traceback)


class Job(RunningJob):
    """A server, a nursery, and the workers that it has forked; all of them end with this."""

    def __init__(self, side: Side, *, kill_stopped: bool = False) -> None:
        super().__init__(side)
        self._kill_stopped = kill_stopped
        self._count = 0
        env = self._env
        self._server = self._serve(env)
        self._nursery = subprocess.Popen(
            [side.python, "-u", str(SCRIPTS / "nursery.py"), *side.modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self._nursery.stdout is not None
        if self._nursery.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the nursery of {side.name} did not start")
        self._processes = [self._nursery, self._server]

    def _serve(self, env: dict[str, str]) -> subprocess.Popen[str]:
        if self._side.server:
            port = _free_port()
            self.endpoint = f"http://localhost:{port}"
            return subprocess.Popen(
                [*self._side.server, "--bind", f"[::]:{port}"],
                env=env,
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        server = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "serve", "127.0.0.1:0"], env=env, text=True, stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        self.endpoint = server.stdout.readline().split()[-1]
        return server

    def start(self) -> int:
        """Fork a worker; returns its pid."""
        log = self.folder / f"worker-{self._count}"
        self._count += 1
        options = {
            "endpoint": self.endpoint,
            "log": str(log),
            "home": str(self.folder / "home"),
            "sleep_s": SLEEP_S,
            **self._side.options,
        }
        script = str(SCRIPTS / self._side.script)
        order = {"script": script, "options": options, "log": str(log), "kill_stopped": self._kill_stopped}
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(order) + "\n")
        self._nursery.stdin.flush()
        pid = int(self._nursery.stdout.readline())
        self.workers[pid] = log
        return pid


@dataclass
class Trials:
    """What came of the faults."""

    stalls: list[float] = field(default_factory=list)
    fulls: list[float] = field(default_factory=list)
    failed: int = 0
    lost: int = 0

    @property
    def count(self) -> int:
        return len(self.fulls) + self.failed


def strike(
    side: Side,
    wanted: int,
    fault: signal.Signals = signal.SIGKILL,
    *,
    kill_stopped: bool = False,
    make: type[Job] | type[LaunchedJob] = Job,
) -> Trials:
    """Deal so many faults, over as many jobs as it takes."""
    trials = Trials()
    while trials.count < wanted:
        with make(side, kill_stopped=kill_stopped) as job:
            pids = [job.start(), job.start()]
            began = time.monotonic()
            if any(job.wait_step(pid, began, 2, START_CAP_S) is None for pid in pids):
                raise RuntimeError(f"{side.name} did not begin: {_errors(job)}")
            for _ in range(min(wanted - trials.count, FAULTS_PER_JOB)):
                if not _one_fault(job, pids, fault, trials):
                    break
    return trials


def _one_fault(job: RunningJob, pids: list[int], fault: signal.Signals, trials: Trials) -> bool:
    time.sleep(random.uniform(*CALM_S))
    victim, survivor = pids[0], pids[1]
    at = time.monotonic()
    os.kill(victim, fault)
    newcomer = job.start()
    stall = job.wait_step(survivor, at + 0.001, None, CAP_S)
    full = job.wait_step(newcomer, at, 2, CAP_S)
    pids[:] = [survivor, newcomer]
    if stall is None or full is None:
        trials.failed += 1
        return False
    trials.stalls.append(_stall(job, survivor, at))
    trials.fulls.append(full - at)
    numbers = [number for _, number, _ in job.steps(survivor)]
    trials.lost += sum(after != before + 1 for before, after in itertools.pairwise(numbers))
    if fault == signal.SIGSTOP:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return True


def _stall(job: RunningJob, survivor: int, at: float) -> float:
    """The survivor's longest pause between two steps, from the last one before the fault on until a moment after."""
    times = [when for when, _, _ in job.steps(survivor)]
    first = max((index for index, when in enumerate(times) if when <= at), default=0)
    # A step may just have been finishing as the fault fell; the pause is then the one after it.
    pauses = [later - max(earlier, at) for earlier, later in itertools.pairwise(times[first:])]
    return max(pauses[:3])


def _errors(job: RunningJob) -> str:
    return " ".join(path.read_text()[-500:] for path in job.folder.glob("*.err"))


# -- cases -----------------------------------------------------------------------------------------------------


def fault_cases(quick: bool, python: str | None) -> Iterator[Case]:
    ours = strike(holdfast(), TRIALS_QUICK if quick else TRIALS)
    default = tuned = None
    if python is not None:
        default = strike(torchft(python), 2 if quick else THEIRS_SLOW)
        tuned = strike(tuned_torchft(python), 3 if quick else THEIRS)
    yield from _cases("one of two killed", ours, default, tuned)
    frozen = strike(holdfast(), TRIALS_QUICK if quick else TRIALS, signal.SIGSTOP, kill_stopped=True)
    theirs = (
        strike(tuned_torchft(python), 3 if quick else THEIRS, signal.SIGSTOP, kill_stopped=True) if python else None
    )
    yield from _cases("one of two frozen, and seen by its launcher", frozen, None, theirs)
    for name, fault in (("killed", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
        agents = strike(holdfast(), TRIALS_QUICK if quick else TRIALS, fault, make=LaunchedJob)
        yield from _cases(f"one of two {name}, under holdfast launch", agents, None, None)
    left = strike(holdfast(settings={"lease": 0.4}), TRIALS_QUICK, signal.SIGSTOP)
    yield Case.seen("one of two frozen, without a launcher: stall", median(left.stalls), "s", "a lease of 0.4 s")


def tuned_torchft(python: str, **options: Any) -> Side:
    """torchft whose lighthouse notices a death within 0.4 s."""
    flags = ("--heartbeat_timeout_ms", "400", "--quorum_tick_ms", "10", "--join_timeout_ms", "400")
    return torchft(python, *flags, **options)


def _cases(name: str, ours: Trials, default: Trials | None, tuned: Trials | None) -> Iterator[Case]:
    for what, mine, limit, pick in (
        ("survivor's stall", ours.stalls, STALL_LIMIT_S, "stalls"),
        ("back to full size", ours.fulls, FULL_LIMIT_S, "fulls"),
    ):
        value = median(mine)
        yield Case.at_most(f"{name}: {what}", value, "s", limit, spread(mine, "s"))
        for label, theirs in (("torchft's defaults", default), ("torchft tuned to 0.4 s", tuned)):
            if theirs is not None:
                found: list[float] = getattr(theirs, pick)
                yield Case.beside(
                    f"... beside {label}",
                    value,
                    median(found) if found else None,
                    "s",
                    less_is_better=True,
                    note=f"{spread(found, 's') if found else 'never'}; {theirs.failed} of {theirs.count} failed",
                )
    yield Case.at_most(f"{name}: did not come back", ours.failed, "", 0, f"of {ours.count}")
    yield Case.at_most(f"{name}: steps lost or done twice", ours.lost, "", 0)


def cost_case(quick: bool) -> Case:
    """What a step costs more than a plain one, in blocks that take turns in the same processes."""
    blocks = COST_BLOCKS_QUICK if quick else COST_BLOCKS
    with Job(holdfast(plain_every=COST_STEPS, blocks=blocks)) as job:
        pids = [job.start(), job.start()]
        deadline = time.monotonic() + START_CAP_S + blocks * COST_STEPS * 0.1
        found: list[float] = []
        plain: list[float] = []
        while len(plain) < blocks and time.monotonic() < deadline:
            time.sleep(0.5)
            notes = job.notes(pids[0]) if job.workers[pids[0]].exists() else []
            found = [note["elastic_s"] for note in notes if "elastic_s" in note]
            plain = [note["plain_s"] for note in notes if "plain_s" in note]
        if len(plain) < blocks:
            raise RuntimeError(f"the cost was not measured: {_errors(job)}")
    # The first block also makes the round and fills caches.
    ratios = [100 * (mine / theirs - 1) for mine, theirs in zip(found[1:], plain[1:], strict=False)]
    note = f"{median(plain) * 1000:.2f} ms plain, {median(found[1:]) * 1000:.2f} ms ours; {spread(ratios, '%')}"
    return Case.at_most("cost of a step of 10 ms without faults", median(ratios), "%", COST_LIMIT_PERCENT, note)


def run(full: bool) -> Results:
    """Measure everything; without `full` with fewer trials of torchft."""
    return measure(quick=not full)


def measure(*, quick: bool, names: tuple[str, ...] = ()) -> Results:
    cases: list[Case] = []
    python = find_torchft() if not names or "fault" in names else None
    if not names or "cost" in names:
        cases += attempt("cost of a step", lambda: [cost_case(quick)])
    if not names or "fault" in names:
        cases += attempt("a worker killed or frozen", lambda: fault_cases(quick, python))
        if python is None:
            cases.append(Case.missing(TORCHFT, "it cannot be installed here"))
    return Results("Recovery inside the process, two workers, gloo, steps of 10 ms", cases, rival=TORCHFT)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.inprocess", description=__doc__)
    parser.add_argument("names", nargs="*", help="fault, cost; default: both")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    results = measure(quick=chosen.quick, names=tuple(chosen.names))
    print(results)
    if not chosen.quick and not chosen.names:
        save(HERE / "results.json", {"inprocess": results})
    sys.exit(0 if results.ok else 1)
