"""NCCL on one GPU: one of three ranks is struck in the midst of training, and the others go on.

    python -m bench.nccl [--trials 10] [--cases step,stop,collective] [--json bench/results.json]

All ranks share one GPU and talk over sockets; see scripts/elastic_nccl.py. Each case can be run by itself, since time
on a machine with a GPU is short. It is not among what `python -m bench` runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu import read
from bench.harness import Case, Results, median, save, spread

HERE = Path(__file__).parent
SCRIPT = HERE / "scripts" / "elastic_nccl.py"
STEPS = 220
TRIAL_TIMEOUT_S = 90.0
#: What is done to the last rank, and how gradients are averaged.
CASES = {
    "step": "killed at the beginning of a step",
    "backward": "killed between backward and reduce",
    "collective": "killed inside a collective",
    "optimizer": "killed after its optimizer's step",
    "stop": "stopped (SIGSTOP) at the beginning of a step",
    "step:ddp": "killed at the beginning of a step, DDP",
    "optimizer:ddp": "killed after its optimizer's step, DDP",
}
#: How long the survivors may take to their next step.
STALL_S_MAX = 0.8


class Trial:
    """One job of three workers: when it was struck, and what its survivors did then."""

    def __init__(self, case: str) -> None:
        how, _, wrap = case.partition(":")
        with tempfile.TemporaryDirectory(prefix="bench-nccl-") as name:
            folder = Path(name)
            command = [sys.executable, "-m", "holdfast", "launch", "--nproc-per-node", "3", "--max-restarts", "5"]
            command += [str(SCRIPT), name, str(STEPS), how, wrap or "plain"]
            launch = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            try:
                self.output, _ = launch.communicate(timeout=TRIAL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(launch.pid, signal.SIGKILL)
                self.output, _ = launch.communicate()
            logs = {path.name: read(path) for path in folder.iterdir() if path.name.isdigit()}
            digests = {path.read_text() for path in folder.glob("digest-*")}
        self.stall_s: float | None = None
        victims = [pid for pid, log in logs.items() if any(what == "killed" for _, _, what in log)]
        survivors = [log for pid, log in logs.items() if pid not in victims and log and _steps(log)[:1] == [0]]
        once = all(_steps(log) == list(range(STEPS)) for log in survivors)
        #: Both survivors lived to the end, did each step once, and all ended with one model.
        self.is_good = launch.returncode == 0 and len(survivors) == 2 and once and len(digests) == 1
        if victims and self.is_good:
            killed = next(at for at, _, what in logs[victims[0]] if what == "killed")
            self.stall_s = max(
                next(at for at, _, what in log if at > killed and what.endswith("/2")) - killed for log in survivors
            )


def _steps(log: list[tuple[float, int, str]]) -> list[int]:
    return [int(what.split("/")[0]) for _, _, what in log if "/" in what]


def measure(case: str, trials: int) -> Case:
    """Strike so many jobs in one way."""
    done = [Trial(case) for _ in range(trials)]
    bad = [trial for trial in done if not trial.is_good]
    for trial in bad:
        print(trial.output[-4000:], file=sys.stderr, flush=True)
    stalls = [trial.stall_s for trial in done if trial.stall_s is not None]
    name = f"one of three {CASES[case]}: the others' next step"
    if bad or not stalls:
        return Case.broken(name, f"{len(bad)} of {trials} trials lost a step, a worker or the job")
    note = f"{trials} of {trials} with each step once and one model; {spread(stalls, 's')}"
    return Case.at_most(name, median(stalls), "s", STALL_S_MAX, note)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--cases", default=",".join(CASES), help="which cases, by comma")
    parser.add_argument("--json", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("torch finds no GPU here")
        return 1
    cases = []
    for case in options.cases.split(","):
        cases.append(measure(case, options.trials))
        results = Results(f"NCCL, three ranks on one {torch.cuda.get_device_name()}", cases)
        save(options.json, {"nccl": results})  # after each case: the machine may be taken away
    print(results)
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
