"""Training in the process with NCCL: `holdfast launch --nproc-per-node 3 elastic_nccl.py FOLDER STEPS HOW WRAP`.

All ranks share one GPU. NCCL allows that where each says that it is on a host of its own. At step `KILL_AT` the last
rank is struck, once, as HOW says. Each worker appends lines `time rank what` to `FOLDER/PID`; see elastic_gpu.py.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

os.environ.update(NCCL_HOSTID=f"host-{os.getpid()}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")

import torch
from torch import nn

import holdfast.torch

KILL_AT, STEP_S = 40, 0.02


def main() -> None:
    folder, steps, how, wrap = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    log = (folder / str(os.getpid())).open("a", buffering=1)

    def tell(rank: int, what: object) -> None:
        log.write(f"{time.monotonic():.6f} {rank} {what}\n")

    def strike() -> None:
        tell(run.rank, "killed")
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)

    tell(-1, "started")
    data = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(1)).cuda()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer)
    with holdfast.torch.elastic(state, backend="nccl") as run:
        forward = run.ddp(model) if wrap == "ddp" else model
        for step in run.steps(4096, 96, steps=steps):
            struck = False
            with step:
                if step.number == KILL_AT and run.rank == run.world_size - 1 > 0 and how != "none":
                    marker = folder / "struck"
                    struck = not marker.exists()
                    marker.touch()
                if struck and how in ("step", "stop"):
                    strike()
                optimizer.zero_grad()
                batch = data[step.indices]
                (forward(batch) - batch).square().mean().backward()
                if struck and how == "backward":
                    torch.cuda.synchronize()
                    strike()
                if struck and how == "collective":
                    threading.Timer(0.004, strike).start()
                if wrap == "plain":
                    step.reduce_gradients(model)
                if struck and how == "optimizer":
                    optimizer.register_step_post_hook(lambda *_: strike())
                optimizer.step()
                time.sleep(STEP_S)
            if step.committed:
                tell(run.rank, f"{step.number}/{run.world_size}")
        rank = run.rank
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    (folder / f"digest-{rank}").write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
