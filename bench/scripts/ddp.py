"""A small data-parallel training script as anyone would write it for torchrun; it does not depend on its launcher.

    torchrun --nproc-per-node 2 ddp.py FOLDER

Each rank appends lines `time pid what world` to `FOLDER/rank-N`, where `what` is `loaded` (torch is imported),
`grouped` (the process group stands), or the number of a step that is done. Times are this machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-s", type=float, default=0.02, help="how long a step takes at least")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backend", default="gloo", help="gloo also averages CUDA tensors, several ranks on one GPU")
    options = parser.parse_args()
    with (options.folder / f"rank-{os.environ['RANK']}").open("a", buffering=1) as log:

        def tell(what: object) -> None:
            log.write(f"{time.monotonic():.6f} {os.getpid()} {what} {os.environ['WORLD_SIZE']}\n")

        tell("loaded")
        device = torch.device("cpu")
        if options.device == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
            torch.cuda.set_device(device)
        if options.backend == "nccl":  # several ranks on one GPU: each says that it is on a host of its own
            os.environ["NCCL_HOSTID"] = f"host-{os.getpid()}"
        dist.init_process_group(options.backend)
        tell("grouped")
        model = DistributedDataParallel(nn.Linear(64, 64).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.randn(32, 64, device=device)
        for step in range(options.steps):
            end = time.monotonic() + options.step_s
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            time.sleep(max(0.0, end - time.monotonic()))
            tell(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
