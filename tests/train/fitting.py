"""A training in process under `holdfast launch`: tells each step, and meets the fate that the environment says.

FATE is `kind:rank:step`; it is met once, by the first worker of that rank. HOLD_AT is `step:workers`: the run goes on
after that step when so many are there; with `step:go`, when the folder has a file of that name.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import holdfast

SAMPLES, BATCH, EPOCHS = 240, 24, 3


def main() -> None:
    folder = Path(sys.argv[1])
    random = np.random.default_rng(0)
    inputs = random.normal(size=(SAMPLES, 6))
    wanted = inputs @ random.normal(size=6)
    state = holdfast.NumpyState(weights=np.zeros(6), used=np.zeros(SAMPLES))
    with holdfast.elastic(state) as run:
        for step in run.steps(SAMPLES, BATCH, micro_batch=4, epochs=EPOCHS):
            with step:
                meet_fate(folder, run.rank, step.number)
                for micro in step.micro_batches:
                    chosen = list(micro.indices)
                    ones = np.zeros(SAMPLES)
                    ones[chosen] = 1
                    step.add([2 * (inputs[chosen] @ state.weights - wanted[chosen]) @ inputs[chosen], ones])
                gradient, ones = step.total()
                state.weights = state.weights - 0.05 * gradient / step.samples
                state.used = state.used + ones
            print(f"step={step.number} rank={run.rank} world={run.world_size} pid={os.getpid()}", flush=True)
            hold(folder, step.number, run)
        assert set(state.used.tolist()) == {float(EPOCHS)}, "a sample was not used once an epoch"
        print(f"final={state.weights.tobytes().hex()} rank={run.rank} world={run.world_size}", flush=True)


def meet_fate(folder: Path, rank: int, number: int) -> None:
    fate = os.environ.get("FATE", "")
    if not fate:
        return
    kind, who, when = fate.split(":")
    mark = folder / "fate-was-met"
    if rank != int(who) or number < int(when) or mark.exists():
        return
    mark.touch()
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "raise":
        raise ValueError("a bug")
    if kind == "exit":
        os._exit(7)
    if kind == "killagent":
        os.kill(os.getppid(), signal.SIGKILL)
        kind = "hang"
    if kind == "hang":
        while True:
            time.sleep(3600)


def hold(folder: Path, number: int, run: holdfast.train.run.Run) -> None:  # type: ignore[name-defined]
    """Go on after a step only once so many workers are in the round or wait to be let in."""
    for wanted in filter(None, os.environ.get("HOLD_AT", "").split(",")):
        at, _, size = wanted.partition(":")
        while size == "go" and number == int(at) and not (folder / "go").exists():
            time.sleep(0.01)
        while size != "go" and number == int(at) and run.world_size + run.membership.newcomers < int(size):
            if run.membership.wait_broken(0.01):
                break


main()
