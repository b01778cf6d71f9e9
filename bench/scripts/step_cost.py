"""Steps without faults, for their cost: `holdfast launch step_cost.py FILE HOW STEP_MS STEPS BLOCKS`.

Blocks of STEPS steps of about STEP_MS take turns: one with torch alone, one with ours, in the same process and over the
same group, so that whatever slows the machine slows both. HOW is `reduce` (a model of 134 million parameters in
bfloat16; torch alone sums each gradient by `all_reduce`, and divides), `ddp` (the same model in
DistributedDataParallel and in `run.ddp`) or `tiny` (a kernel that only takes time, and a model of a million parameters:
its optimizer is over before the host has queued the next step, so nothing hides what the host does meanwhile). The host
runs ahead of the GPU where the loop lets it. Rank 0 writes a line `bare ours` to FILE for each pair of blocks, in ms a
step. Without a GPU all steps are `tiny`, with a sleep, and gloo averages.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(NCCL_HOSTID=f"host-{os.getpid()}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")

import torch
import torch.distributed as dist
from torch import nn

import holdfast.torch

ON_GPU = torch.cuda.is_available()
DEVICE, BACKEND = ("cuda", "nccl") if ON_GPU else ("cpu", "gloo")
WIDTH, LAYERS = 4096, 8
ROWS_MAX = 131_072


class Work:
    """What a step computes: a model, its optimizer, a batch, and what else keeps the device busy."""

    def __init__(self, how: str, step_ms: float, rows: int = 0) -> None:
        self.is_tiny = how == "tiny" or not ON_GPU
        if self.is_tiny:
            self.model: nn.Module = nn.Linear(1024, 1024, device=DEVICE)
            self.busy = make_busy(step_ms)
            self.batch = torch.ones(8, 1024, device=DEVICE)
        else:
            layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
            self.model = nn.Sequential(*layers).to(DEVICE, torch.bfloat16)
            self.busy = lambda: None
            self.batch = torch.randn(rows or 1024, WIDTH, device=DEVICE, dtype=torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=ON_GPU)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.model
        if not self.is_tiny and not rows:
            self._fit(step_ms)

    def compute(self) -> None:
        """Have gradients."""
        self.optimizer.zero_grad()
        self.busy()
        self.forward(self.batch).square().mean().backward()

    def _fit(self, step_ms: float) -> None:
        """Choose the batch so that a step takes as long as it should, on a GPU whose clocks have come up."""
        timed(self._step, 200)
        for _ in range(4):
            taken_ms = timed(self._step, 5)
            rows = int(self.batch.shape[0] * step_ms / taken_ms) // 128 * 128
            rows = min(max(rows, 128), ROWS_MAX)
            self.batch = torch.randn(rows, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def _step(self) -> None:
        self.compute()
        self.optimizer.step()


def make_busy(step_ms: float) -> Callable[[], None]:
    """Return what keeps the device busy for so long, measured here and now."""
    if not ON_GPU:
        return lambda: time.sleep(step_ms / 1000)
    probe = 100_000_000
    timed(lambda: torch.cuda._sleep(probe), 1)
    cycles = int(probe * step_ms / timed(lambda: torch.cuda._sleep(probe), 1))
    return lambda: torch.cuda._sleep(cycles)


def timed(act: Callable[[], Any], times: int) -> float:
    """Return how many ms it takes, from a device that is at rest to one that is at rest again."""
    torch.cuda.synchronize() if ON_GPU else None
    began = time.perf_counter()
    for _ in range(times):
        act()
    torch.cuda.synchronize() if ON_GPU else None
    return (time.perf_counter() - began) / times * 1000


def main() -> None:
    file, how, step_ms = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    steps, blocks = int(sys.argv[4]), int(sys.argv[5])
    ours = Work(how, step_ms)
    bare = Work(how, step_ms, rows=ours.batch.shape[0])

    state = holdfast.torch.TorchState(model=ours.model, optimizer=ours.optimizer)
    with holdfast.torch.elastic(state, backend=BACKEND) as run:
        if how == "ddp":
            ours.forward = run.ddp(ours.model)
        numbered = iter(run.steps(steps=steps * (blocks + 1)))

        def our_step() -> None:
            with next(numbered) as step:
                ours.compute()
                if how != "ddp":
                    step.reduce_gradients(ours.model)
                ours.optimizer.step()

        def bare_step() -> None:
            if how == "ddp" and bare.forward is bare.model:  # the first step has made the group
                bare.forward = nn.parallel.DistributedDataParallel(bare.model)
            bare.compute()
            if how != "ddp":
                gradients = [parameter.grad for parameter in bare.model.parameters()]
                for gradient in gradients:
                    dist.all_reduce(gradient)
                torch._foreach_div_(gradients, dist.get_world_size())
            bare.optimizer.step()

        # The first block of each opens what is opened once.
        pairs = [(timed(our_step, steps), timed(bare_step, steps)) for _ in range(blocks + 1)]
        if run.rank == 0:
            file.write_text("".join(f"{theirs} {mine}\n" for mine, theirs in pairs[1:]))


if __name__ == "__main__":
    main()
