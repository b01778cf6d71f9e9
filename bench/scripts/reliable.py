"""The training of the reliability table: steps of 50 ms over gloo that tell whether every sample was used once.

    holdfast launch ... reliable.py plain FOLDER NAME           a script as anyone would write it for torchrun
    holdfast launch ... reliable.py in-process FOLDER NAME      the same in `holdfast.torch.elastic`

In every step each rank brings a one for each of its samples, and the sum over all ranks is added to the state. The
plain script saves its state every ten steps in FOLDER, which all hosts share, and begins from there. For each step that
is done, a worker appends `time pid step world samples spread` to `FOLDER/NAME.steps`: samples is how many the state has
seen, spread by how much the most used sample is ahead of the least used one. Times are of the monotonic clock.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

SAMPLES, BATCH, STEP_S, SAVE_EVERY = 240, 24, 0.05, 10


def tell(log: TextIO, step: int, world: int, used: torch.Tensor) -> None:
    spread = int(used.max() - used.min())
    log.write(f"{time.monotonic():.4f} {os.getpid()} {step} {world} {int(used.sum())} {spread}\n")


def train_plain(folder: Path, log: TextIO) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    path = folder / "checkpoint.json"
    begun = torch.zeros(1 + SAMPLES, dtype=torch.float64)
    if rank == 0 and path.exists():
        saved = json.loads(path.read_text())
        begun[0], begun[1:] = saved["step"], torch.tensor(saved["used"])
    dist.broadcast(begun, 0)
    used, step = begun[1:], int(begun[0])
    while True:
        time.sleep(STEP_S)
        ones = torch.zeros(SAMPLES, dtype=torch.float64)
        ones[[(step * BATCH + index) % SAMPLES for index in range(rank, BATCH, world)]] = 1.0
        dist.all_reduce(ones)
        used += ones
        tell(log, step, world, used)
        step += 1
        if rank == 0 and step % SAVE_EVERY == 0:
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({"step": step, "used": used.tolist()}))
            draft.replace(path)


def train_in_process(log: TextIO) -> None:
    from holdfast.torch import TorchState, elastic

    torch.manual_seed(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state: Any = TorchState(model=model, optimizer=optimizer, used=torch.zeros(SAMPLES, dtype=torch.float64))
    with elastic(state, backend="gloo") as run:
        for step in run.steps(SAMPLES, BATCH, epochs=None):
            with step:
                optimizer.zero_grad()
                time.sleep(STEP_S)
                model(torch.ones(1, 8)).sum().backward()
                step.reduce_gradients(model)
                ones = torch.zeros(SAMPLES, dtype=torch.float64)
                ones[list(step.indices)] = 1.0
                dist.all_reduce(ones)
                optimizer.step()
                state.used += ones
            if step.committed:
                tell(log, step.number, run.world_size, state.used)


def main() -> None:
    way, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    with (folder / f"{name}.steps").open("a", buffering=1) as log:
        train_plain(folder, log) if way == "plain" else train_in_process(log)


if __name__ == "__main__":
    main()
