"""Steps without faults, for their cost: `holdfast launch step_cost.py FOLDER MODE STEP_MS STEPS`.

MODE is `bare` (a process group of torch and nothing of ours) or `ours`. A step keeps the GPU busy for STEP_MS, then
averages a gradient of 4 MiB and updates. The host runs ahead of the GPU where the loop lets it. Rank 0 writes the mean
time of a step, in ms, to FOLDER/MODE. Without a GPU the step is a sleep, and gloo averages.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.update(NCCL_HOSTID=f"host-{os.getpid()}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")

import torch
import torch.distributed as dist
from torch import nn

import holdfast.torch

WARM_UP = 10
ON_GPU = torch.cuda.is_available()
DEVICE, BACKEND = ("cuda", "nccl") if ON_GPU else ("cpu", "gloo")


def make_busy(step_ms: float) -> Callable[[], None]:
    """Return what keeps the device busy for so long, measured here and now."""
    if not ON_GPU:
        return lambda: time.sleep(step_ms / 1000)
    probe = 100_000_000
    torch.cuda._sleep(probe)
    torch.cuda.synchronize()
    began = time.perf_counter()
    torch.cuda._sleep(probe)
    torch.cuda.synchronize()
    cycles = int(probe * step_ms / 1000 / (time.perf_counter() - began))
    return lambda: torch.cuda._sleep(cycles)


def main() -> None:
    folder, mode, step_ms, steps = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    model = nn.Linear(1024, 1024, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.ones(8, 1024, device=DEVICE)
    busy = make_busy(step_ms)
    began = 0.0

    def compute(number: int) -> None:
        nonlocal began
        if number == WARM_UP:
            torch.cuda.synchronize() if ON_GPU else None
            began = time.perf_counter()
        optimizer.zero_grad()
        busy()
        model(batch).square().mean().backward()

    if mode == "bare":
        dist.init_process_group(BACKEND)
        for number in range(WARM_UP + steps):
            compute(number)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
        rank = dist.get_rank()
    else:
        with holdfast.torch.elastic(holdfast.torch.TorchState(model=model, optimizer=optimizer)) as run:
            for step in run.steps(steps=WARM_UP + steps):
                with step:
                    compute(step.number)
                    step.reduce_gradients(model)
                    optimizer.step()
            rank = run.rank
    torch.cuda.synchronize() if ON_GPU else None
    if rank == 0:
        (folder / mode).write_text(str((time.perf_counter() - began) / steps * 1000))
    if mode == "bare":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
