"""NCCL on one GPU: the trials of `bench.gpu`, and what becomes of their samples.

One of three ranks meets a fault in the midst of training, and the others go on; once all are together again, the next
trial begins in the same job. All ranks share one GPU and talk over sockets; see scripts/elastic_nccl.py. Trials return
samples, plain data that is kept; a table is made of samples. Without a GPU the same jobs run over gloo.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from bench.harness import Case, median, spread
from bench.inprocess import find_torchft, strike, tuned_torchft
from bench.scripts.jobs import NCCL_SOCKETS, Scene

SCRIPTS = Path(__file__).parent / "scripts"
WORKERS = 3
TRIAL_TIMEOUT_S = 120.0
#: How much longer a job may take for each of its faults.
FAULT_TIMEOUT_S = 15.0
TORCHRUN_CAP_S = 40.0
#: What happens to a rank.
FAULTS = {
    "step": "killed at the beginning of a step",
    "backward": "killed between backward and reduce",
    "collective": "killed inside a collective",
    "optimizer": "killed inside its optimizer's step",
    "stop": "stopped (SIGSTOP)",
    "form": "killed, and the one in its place while the group forms",
    "transfer": "killed, and the one in its place while it takes the state over",
    "twice": "killed, and then another as soon as the rest are together",
    "assert": "fails by an assert in a kernel",
    "oom": "runs out of memory, again and again",
}
#: What the launch must say of a worker that was not ended from outside, on a GPU or without one.
REASONS = {"assert": ("CUDA error", "AcceleratorError", "IndexError"), "oom": ("memory",)}
#: How long the survivors may take to their next step.
STALL_S_MAX = 0.8
#: How long until all ranks step again, with a standby.
FULL_S_MAX = 0.8
#: How much a step of 20 ms may take longer than with torch alone.
COST_PERCENT_MAX = 1.0
#: Whose cost is measured: scripts/step_cost.py says how.
COSTS = {
    "reduce": "reduce_gradients beside all_reduce",
    "ddp": "run.ddp beside DistributedDataParallel",
    "tiny": "an optimizer too short to hide anything behind",
}
#: How long a block of steps takes, of those whose cost is measured.
COST_BLOCK_S = 1.0
Sample = dict[str, Any]
Log = list[tuple[float, int, str]]
#: Does trials of a case, at most so many and at least one.
Trials = Callable[[str, int], list[Sample]]
Told = Callable[[str, Sequence[Sample]], list[Case]]


def read(path: Path) -> Log:
    """Return what one worker wrote: when, as which rank, what."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(float(at), int(rank), what) for at, rank, what in lines]


# -- one rank meets a fault ----------------------------------------------------------------------------------------


def inject(case: str, trials: int) -> list[Sample]:
    """Let a job of three workers meet so many faults; a case is a fault, then `ddp` and `standby` behind colons."""
    how, *more = case.split(":")
    wrap = "ddp" if "ddp" in more else "plain"
    flags = ("--standby", "1") if "standby" in more else ()
    with tempfile.TemporaryDirectory(prefix="bench-nccl-") as name:
        limit_s = TRIAL_TIMEOUT_S + FAULT_TIMEOUT_S * trials
        output, code = launch(name, WORKERS, flags, "elastic_nccl.py", name, how, wrap, str(trials), limit_s=limit_s)
        logs = {path.name: read(path) for path in Path(name).iterdir() if path.name.isdigit()}
        digests = {path.read_text() for path in Path(name).glob("digest-*")}
    # A worker that dies behind its optimizer's step has all sums of that step: the others finish it undisturbed.
    samples = judge(logs, "" if code == 0 else f"the job ended with {code}", finishes=how == "optimizer")
    if len(digests) > 1:
        samples[-1].update(good=False, why=f"{len(digests)} models at the end")
    if not any(word in output for word in REASONS.get(how, ("",))):
        samples[-1].update(good=False, why="the reason was not told")
    if not all(sample["good"] for sample in samples):
        print(output[-4000:], file=sys.stderr, flush=True)
    return samples


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: in which trial, when, which worker met it, and the last step that it does not hold up."""

    trial: int
    at: float
    pid: str
    step: int


def judge(logs: dict[str, Log], ended_badly: str = "", *, finishes: bool = False) -> list[Sample]:
    """Say of each trial whether all others did each step once, and how long they and all stood still.

    With `finishes` the others still finish the step that a worker died in, and what counts is the one after it.
    """
    faults = sorted(_faults(logs, finishes), key=lambda fault: fault.at)
    if not faults:
        return [{"good": False, "why": ended_badly or "no fault was met"}]
    wrong: dict[int, str] = {}
    for at, why in [*_lost(logs, {fault.pid for fault in faults}), *([(inf, ended_badly)] if ended_badly else [])]:
        before = [fault.trial for fault in faults if fault.at <= at]
        wrong.setdefault(before[-1] if before else faults[0].trial, why)
    trials = sorted({fault.trial for fault in faults})
    return [
        {"good": False, "why": wrong[trial]}
        if trial in wrong
        else _measure(logs, [fault for fault in faults if fault.trial == trial], faults)
        for trial in trials
    ]


def _faults(logs: dict[str, Log], finishes: bool) -> Iterator[Fault]:
    for pid, log in logs.items():
        # A worker that runs out of memory says so each time that it tries again: the first time counts.
        for at, _, what in log:
            if what.startswith("fault-"):
                yield Fault(int(what.partition("-")[2]), at, pid, max(_steps(log), default=-1) + finishes)
                break


def _lost(logs: dict[str, Log], hit: set[str]) -> Iterator[tuple[float, str]]:
    """Yield when something was lost, and what: a step, or a worker that met no fault.

    A worker whose step was undone while another's was counted takes that one's state, and says nothing of the step:
    what counts is that one that lives has done it, and that none does a step again.
    """
    counted = {pid: list(_counted(log)) for pid, log in logs.items()}
    told = {step for done in counted.values() for _, step, _ in done}
    sizes: dict[int, str] = {}
    for pid, done in counted.items():
        for (_, before, _), (at, step, _) in pairwise(done):
            if step <= before or not told.issuperset(range(before + 1, step)):
                yield at, f"step {step} came after {before}"
        # The last step of a worker that was hit may have died with it.
        for at, step, size in done[:-1] if pid in hit else done:
            if sizes.setdefault(step, size) != size:
                yield at, f"step {step} was done by {sizes[step]} workers, and again by {size}"
        if pid not in hit and done and done[-1][1] < max(told):
            yield done[-1][0], f"a worker that met no fault ended after step {done[-1][1]} of {max(told)}"


def _counted(log: Log) -> Iterator[tuple[float, int, str]]:
    """Yield every step that a worker has counted, and with how many workers."""
    for at, _, what in log:
        step, slash, size = what.partition("/")
        if slash:
            yield at, int(step), size


def _measure(logs: dict[str, Log], faults: Sequence[Fault], all_faults: Sequence[Fault]) -> Sample:
    hit = {fault.pid: fault.at for fault in all_faults}
    last = faults[-1]
    stalls: list[float] = []
    full: list[float | None] = []
    for fault in faults:
        left = [
            log
            for pid, log in logs.items()
            if hit.get(pid, inf) > fault.at and any(at <= fault.at and "/" in what for at, _, what in log)
        ]
        # One of them may meet the next fault before its next step.
        stalls += [at - fault.at for log in left if (at := _next(log, fault.at, fault.step)) is not None]
        if fault is last:
            full = [_next(log, fault.at, fault.step, size=str(WORKERS)) for log in left]
    if not stalls:
        return {"good": False, "why": "no other worker did a step afterwards"}
    back = [at - last.at for at in full if at is not None]
    return {"good": True, "stall_s": max(stalls), "full_s": max(back) if len(back) == len(full) else None}


def _steps(log: Log) -> list[int]:
    return [int(what.split("/")[0]) for _, _, what in log if "/" in what]


def _next(log: Log, after: float, step: int, size: str = "") -> float | None:
    """Return when a worker had done a later step after a moment, with so many workers; None if it never did."""
    for at, _, what in log:
        number, slash, workers = what.partition("/")
        if slash and at > after and int(number) > step and size in ("", workers):
            return at
    return None


def fault_cases(case: str, samples: Sequence[Sample]) -> list[Case]:
    """Put the trials of one fault together."""
    how, *more = case.split(":")
    name = f"one of three {FAULTS[how]}{', ' + ', '.join(more) if more else ''}"
    bad = [sample for sample in samples if not sample["good"]]
    if bad:
        return [Case.broken(name, f"{len(bad)} of {len(samples)} trials lost a step, a worker or the job")]
    stalls = [sample["stall_s"] for sample in samples]
    full = [sample["full_s"] for sample in samples if sample["full_s"] is not None]
    note = f"{len(samples)} of {len(samples)} with each step once and one model; {spread(stalls, 's')}"
    whole = f"{len(full)} of {len(samples)} came back to three"
    told = f"{name}: the others' next step"
    # A worker whose step fails by itself tries once more before it ends: nothing is promised of how long that takes.
    is_sudden = how not in REASONS
    rows = (
        [Case.at_most(told, median(stalls), "s", STALL_S_MAX, note)]
        if is_sudden
        else [Case.seen(told, median(stalls), "s", note)]
    )
    if full and "standby" in more:
        rows.append(
            Case.at_most("... all three step again", median(full), "s", FULL_S_MAX, f"{whole}; {spread(full, 's')}")
        )
    elif full:
        rows.append(Case.seen("... all three step again", median(full), "s", f"{whole}; {spread(full, 's')}"))
    return rows


# -- what it costs -------------------------------------------------------------------------------------------------


def cost(case: str, trials: int) -> list[Sample]:
    """Time undisturbed steps with torch alone and with ours, in blocks that take turns; a case is `cost:MS:HOW`."""
    _, step_ms, how = case.split(":")
    steps = max(15, int(COST_BLOCK_S * 1000 / float(step_ms)))
    with tempfile.TemporaryDirectory(prefix="bench-nccl-") as name:
        file = Path(name) / "blocks"
        output, code = launch(name, 1, (), "step_cost.py", str(file), how, step_ms, str(steps), str(trials))
        if code:
            print(output[-4000:], file=sys.stderr, flush=True)
            return [{"good": False, "why": f"it ended with {code}"}]
        pairs = [line.split() for line in file.read_text().splitlines()]
    return [{"good": True, "bare": float(bare), "ours": float(ours)} for bare, ours in pairs]


def cost_cases(case: str, samples: Sequence[Sample]) -> list[Case]:
    """Compare steps; the target is for those of 20 ms with a model that keeps the GPU busy."""
    _, step_ms, how = case.split(":")
    name = f"cost without faults, steps of {step_ms} ms, {COSTS[how]}"
    good = [sample for sample in samples if sample["good"]]
    if len(good) < len(samples):
        return [Case.broken(name, f"{len(samples) - len(good)} of {len(samples)} trials failed")]
    percents = [100 * (sample["ours"] / sample["bare"] - 1) for sample in good]
    note = f"{median([each['ours'] for each in good]):.3f} ms beside {median([each['bare'] for each in good]):.3f} ms; "
    note += spread(percents, "%")
    if step_ms == "20" and how != "tiny":
        return [Case.at_most(name, median(percents), "%", COST_PERCENT_MAX, note)]
    return [Case.seen(name, median(percents), "%", note)]


# -- the state ---------------------------------------------------------------------------------------------------------


def transfer(case: str, trials: int) -> list[Sample]:
    """Let replacements take a large state over, then send as much with NCCL alone; a case is `state:GIB`."""
    gib = float(case.partition(":")[2])
    with tempfile.TemporaryDirectory(prefix="bench-nccl-") as name:
        limit_s = TRIAL_TIMEOUT_S + FAULT_TIMEOUT_S * trials
        words = (name, "step", "plain", str(trials), str(gib))
        output, code = launch(name, 2, (), "elastic_nccl.py", *words, limit_s=limit_s)
        logs = [read(path) for path in Path(name).iterdir() if path.name.isdigit()]
        bus = Path(name) / "bus"
        launch(name, 2, (), "bus.py", str(bus), str(gib), str(trials))
        sent = [float(line) for line in bus.read_text().split()] if bus.exists() else []
    taken = list(_takeovers(logs))
    if code or len(taken) < trials or len(sent) < trials:
        print(output[-4000:], file=sys.stderr, flush=True)
        why = f"it ended with {code}; {len(taken)} of {trials} took the state over, {len(sent)} sent it by NCCL alone"
        return [{"good": False, "why": why}]
    return [{"good": True, "seconds": mine, "bus_s": bare, "gib": gib} for mine, bare in zip(taken, sent, strict=False)]


def _takeovers(logs: Sequence[Log]) -> Iterator[float]:
    """Yield how long each replacement took over the state; the first workers had none to take."""
    first_fault = min((at for log in logs for at, _, what in log if what.startswith("fault-")), default=inf)
    for log in sorted(logs):
        times = {what: at for at, _, what in reversed(log) if what.startswith("sync-")}
        if log[0][0] > first_fault and len(times) == 2:
            yield times["sync-end"] - times["sync-begin"]


def transfer_cases(case: str, samples: Sequence[Sample]) -> list[Case]:
    """Say how fast a replacement has the state, beside NCCL alone."""
    name = f"a replacement takes over {case.partition(':')[2]} GiB"
    good = [sample for sample in samples if sample["good"]]
    if len(good) < len(samples):
        return [Case.broken(name, f"{len(samples) - len(good)} of {len(samples)} trials failed")]
    seconds = [sample["seconds"] for sample in good]
    rate = median([sample["gib"] / sample["seconds"] for sample in good])
    bus = [sample["bus_s"] for sample in good]
    note = f"{rate:.2f} GiB/s; {spread(seconds, 's')}; NCCL alone {spread(bus, 's')}"
    return [Case.beside(name, median(seconds), median(bus), "s", less_is_better=True, note=note)]


# -- torchft ---------------------------------------------------------------------------------------------------------


def torchft(case: str, trials: int) -> list[Sample]:
    """Kill one of two workers of torchft's, tuned to notice that soon; each takes its place by a warm fork."""
    del case
    python = find_torchft()
    if python is None:
        return [{"good": False, "why": "torchft could not be installed"}]
    os.environ.update(NCCL_SOCKETS)
    side = tuned_torchft(python, device="cuda" if has_gpu() else "cpu")
    try:
        found = strike(side, trials)
    except RuntimeError as error:  # it would not begin the next time either, and that takes minutes to see
        return [{"good": False, "why": str(error)}] * trials
    samples: list[Sample] = [
        {"good": True, "stall_s": stall, "full_s": full} for stall, full in zip(found.stalls, found.fulls, strict=True)
    ]
    return samples + [{"good": False, "why": "not back to two"}] * found.failed


def torchft_cases(case: str, samples: Sequence[Sample]) -> list[Case]:
    """Say what became of torchft's workers."""
    del case
    good = [sample for sample in samples if sample["good"]]
    name = "torchft 0.2.0 tuned to 0.4 s, one of two killed"
    note = f"{len(good)} of {len(samples)} came back to two"
    if not good:
        return [Case.seen(f"{name}: the other's next step", None, "s", note)]
    stalls, full = ([sample[key] for sample in good] for key in ("stall_s", "full_s"))
    return [
        Case.seen(f"{name}: the other's next step", median(stalls), "s", f"{note}; {spread(stalls, 's')}"),
        Case.seen("... both step again", median(full), "s", spread(full, "s")),
    ]


# -- a plain script --------------------------------------------------------------------------------------------------


def restart(case: str, trials: int) -> list[Sample]:
    """Kill one of two workers of a plain script, again and again while both come back; a case is `plain:SIDE`."""
    side = case.partition(":")[2]
    flags = {
        "warm": ("--preload", "torch"),
        "standby": ("--preload", "torch,own_host", "--standby", "2"),
        "cold": ("--preload", "none"),
        "torchrun": ("--standalone",),
    }[side]
    on_gpu = has_gpu()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SCRIPTS / "preload"), os.environ.get("PYTHONPATH", "")])
    samples: list[Sample] = []
    with Scene(device="cuda" if on_gpu else "cpu", backend="nccl" if on_gpu else "gloo") as scene:
        launcher = "torchrun" if side == "torchrun" else "holdfast"
        started = scene.launch(launcher, "--nproc-per-node", "2", "--max-restarts", str(trials), *flags)
        stepping = scene.log.wait_stepping(2, set(), time.monotonic() + TRIAL_TIMEOUT_S)
        if stepping is None:
            print(scene.tail(), file=sys.stderr, flush=True)
            return [{"good": False, "why": "it never stepped"}]
        first_s = max(entry.at for entry in stepping) - started.started_at
        while len(samples) < trials:
            if side == "standby":
                wanted = 2 * (len(samples) + 1)  # both workers are replaced each time
                _wait_until(lambda: len(started.facts("standby_ready")) >= wanted)  # noqa: B023 - called here
            time.sleep(1.0)
            known = scene.log.pids()
            at = time.monotonic()
            os.kill(stepping[1].pid, signal.SIGKILL)
            stepping = scene.log.wait_stepping(2, known, at + TORCHRUN_CAP_S)
            if stepping is None:
                print(scene.tail(), file=sys.stderr, flush=True)
                samples.append({"good": False, "why": f"not back within {TORCHRUN_CAP_S:g} s"})
                break
            samples.append({"good": True, "back_s": max(entry.at for entry in stepping) - at})
    samples[0]["first_s"] = first_s
    return samples


def restart_cases(case: str, samples: Sequence[Sample]) -> list[Case]:
    """Say how soon all ranks step again."""
    side = case.partition(":")[2]
    good = [sample["back_s"] for sample in samples if sample["good"]]
    name = f"plain script, one of two ranks killed, {side}: all step again"
    note = f"{len(good)} of {len(samples)} came back{'; ' + spread(good, 's') if good else ''}"
    first = [sample["first_s"] for sample in samples if "first_s" in sample]
    rows = [Case.seen(f"... first step, {side}", median(first), "s", spread(first, "s"))] if first else []
    if side == "torchrun":
        return [Case.seen(name, median(good) if good else None, "s", note), *rows]
    if len(good) < len(samples):
        return [Case.broken(name, note), *rows]
    if side == "standby":
        return [Case.at_most(name, median(good), "s", FULL_S_MAX, note), *rows]
    return [Case.seen(name, median(good), "s", note), *rows]


# -- what all need ---------------------------------------------------------------------------------------------------


def launch(
    folder: str, workers: int, flags: Sequence[str], script: str, *words: str, limit_s: float = TRIAL_TIMEOUT_S
) -> tuple[str, int]:
    """Run a job to its end, or for as long as it may take; returns its output and its exit code."""
    command = [sys.executable, "-m", "holdfast", "launch", "--nproc-per-node", str(workers), "--max-restarts", "999"]
    command += ["--preload", "torch,holdfast", "--log-dir", f"{folder}/logs", *flags, str(SCRIPTS / script), *words]
    environ = {**os.environ, **NCCL_SOCKETS, "HOLDFAST_HOME": f"{folder}/home"}
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environ
    )
    try:
        output, _ = job.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        job.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.communicate(timeout=10)
        job.kill()
        output, _ = job.communicate()
        return f"{output}\nit took longer than {limit_s:g} s", 124
    return output, job.returncode


def has_gpu() -> bool:
    """Say whether torch finds one."""
    import torch

    return torch.cuda.is_available()


def _wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TRIAL_TIMEOUT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)


def cases() -> Iterator[tuple[str, Trials, Told]]:
    """Name every case, with how its trials go and what becomes of samples."""
    for how in FAULTS:
        yield how, inject, fault_cases
    for case in ("step:ddp", "optimizer:ddp", "step:standby", "stop:standby"):
        yield case, inject, fault_cases
    for how in COSTS:
        for step_ms in (5, 20, 100):
            yield f"cost:{step_ms}:{how}", cost, cost_cases
    for gib in (1, 10):
        yield f"state:{gib}", transfer, transfer_cases
    for side in ("standby", "warm", "cold", "torchrun"):
        yield f"plain:{side}", restart, restart_cases
    yield "torchft", torchft, torchft_cases
