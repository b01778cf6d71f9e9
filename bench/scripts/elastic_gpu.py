"""Training in the process on a GPU: `holdfast launch --nproc-per-node 2 elastic_gpu.py FOLDER STEPS MIN KILL_AT`.

Each worker appends lines `time rank what` to `FOLDER/PID`, where `what` is `started`, `cuda` (its first tensor is on
the GPU), `killed`, or `step/workers` for a step that is done. At the end every rank writes its parameters' digest.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import holdfast.torch

STEP_S = 0.02


def main() -> None:
    folder = Path(sys.argv[1])
    steps, min_workers, kill_at = map(int, sys.argv[2:])
    log = (folder / str(os.getpid())).open("a", buffering=1)

    def tell(rank: int, what: object) -> None:
        log.write(f"{time.monotonic():.6f} {rank} {what}\n")

    tell(-1, "started")
    # Two workers share the one GPU; gloo sums the tensors of both, which NCCL refuses on one device.
    data = torch.randn(4096, 256, generator=torch.Generator().manual_seed(1)).cuda()
    tell(-1, "cuda")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer)
    with holdfast.torch.elastic(state, backend="gloo", min_workers=min_workers) as run:
        for step in run.steps(4096, 64, epochs=None):
            with step:
                if step.number == kill_at and run.rank == 1 and not (folder / "struck").exists():
                    (folder / "struck").touch()
                    tell(run.rank, "killed")
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                batch = data[step.indices]
                (model(batch) - batch).square().mean().backward()
                step.reduce_gradients(model)
                optimizer.step()
                torch.cuda.synchronize()
                time.sleep(STEP_S)
            if step.committed:
                tell(run.rank, f"{step.number}/{run.world_size}")
            if run.progress >= steps:
                break
        rank = run.rank
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    (folder / f"digest-{rank}").write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
