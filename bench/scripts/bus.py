"""What NCCL alone takes to send a state to one rank: `holdfast launch --nproc-per-node 2 bus.py FILE GIB TIMES`.

Both ranks share one GPU and talk over sockets, as in elastic_nccl.py. Rank 1 writes to FILE how many seconds each
transfer took, from the moment that both are ready. Without a GPU gloo sends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["NCCL_HOSTID"] = f"host-{os.getpid()}"

import torch
import torch.distributed as dist

DEVICE, BACKEND = ("cuda", "nccl") if torch.cuda.is_available() else ("cpu", "gloo")
BYTES_PER_GIB = 2**30


def settled() -> float:
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    return time.monotonic()


def main() -> None:
    file, gib, times = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group(BACKEND)
    ballast = torch.ones(int(gib * BYTES_PER_GIB) // 4, device=DEVICE)
    taken = []
    for _ in range(times + 1):
        dist.barrier()
        began = settled()
        dist.send(ballast, 1) if dist.get_rank() == 0 else dist.recv(ballast, 0)
        taken.append(settled() - began)
    if dist.get_rank() == 1:
        file.write_text("".join(f"{seconds}\n" for seconds in taken[1:]))  # the first opens the connection
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
