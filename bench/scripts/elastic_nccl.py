"""Training in the process with NCCL: `holdfast launch --nproc-per-node 3 elastic_nccl.py FOLDER STEPS HOW WRAP [GIB]`.

All ranks share one GPU. NCCL allows that where each says that it is on a host of its own. At step `KILL_AT` the last
rank is struck, once, as HOW says; some ways strike a second time. Each worker appends lines `time rank what` to
`FOLDER/PID`: `started`, `killed` (it is struck now), `sync/begin` and `sync/end` of the state's transfer, and
`step/workers` for a step that is done. GIB is the size of a tensor in the state beside the model.

Without a GPU it trains over gloo, so that everything but NCCL can be tried anywhere.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(NCCL_HOSTID=f"host-{os.getpid()}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")

import torch
from torch import nn

import holdfast.torch

KILL_AT, STEP_S = 40, 0.02
#: Struck at the beginning of the step, whatever else happens.
AT_STEP = ("step", "stop", "twice", "transfer")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
BYTES_PER_GIB = 2**30


class Striker:
    """Strikes this process where HOW says so, once for the whole job and each reason."""

    def __init__(self, folder: Path, how: str, tell: Callable[[int, object], None]) -> None:
        self.folder, self.how, self._tell = folder, how, tell
        #: Whether this worker came after one that was struck.
        self.is_newcomer = (folder / "struck").exists()

    def once(self, name: str) -> bool:
        """Whether this process is the first to come here; later on, whether it was."""
        mark = self.folder / name
        try:
            with mark.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return False
        return True

    def strike(self, rank: int) -> None:
        """Say so, and do it."""
        self._tell(rank, "killed")
        if self.how == "assert":
            values = torch.zeros(4, device=DEVICE)
            print(values[torch.tensor([7], device=DEVICE)].sum().item())
        elif self.how == "oom":
            torch.empty(2**50, dtype=torch.uint8, device=DEVICE)
        else:
            os.kill(os.getpid(), signal.SIGSTOP if self.how == "stop" else signal.SIGKILL)

    def is_due(self, number: int, rank: int, world_size: int) -> bool:
        """Whether the last rank is to be struck in this step."""
        if self.how in ("none", "form"):
            return False
        if number >= KILL_AT and rank == world_size - 1 > 0 and self.once("struck"):
            return True
        # The first of those that are left is struck as soon as these are together again.
        return self.how == "twice" and number > KILL_AT and rank == 0 and not self.is_newcomer and self.once("again")

    def is_marked(self) -> bool:
        """Whether this very process was struck with something that stays."""
        mark = self.folder / "struck"
        return self.how in ("oom", "assert") and mark.exists() and mark.read_text() == str(os.getpid())


def watch(run: Any, state: Any, striker: Striker, tell: Callable[[int, object], None]) -> None:
    """Strike while the first group forms or the state is taken over, where that is asked for; note when it is."""
    form = run.groups.form
    sync = state.sync

    def forming(view: Any, membership: Any) -> None:
        if striker.how == "form" and view.rank == view.world_size - 1 > 0 and striker.once("struck"):
            threading.Timer(0.01, striker.strike, (view.rank,)).start()
        form(view, membership)

    def syncing(world_size: int, rank: int) -> None:
        tell(rank, "sync-begin")
        if striker.how == "transfer" and striker.is_newcomer and striker.once("again"):
            threading.Timer(0.001, striker.strike, (rank,)).start()
        sync(world_size, rank)
        tell(rank, "sync-end")

    run.groups.form = forming
    state.sync = syncing


def main() -> None:
    folder, steps, how, wrap = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    gib = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    log = (folder / str(os.getpid())).open("a", buffering=1)

    def tell(rank: int, what: object) -> None:
        log.write(f"{time.monotonic():.6f} {rank} {what}\n")

    tell(-1, "started")
    striker = Striker(folder, how, tell)
    data = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    extra = {"ballast": torch.ones(int(gib * BYTES_PER_GIB) // 4, device=DEVICE)} if gib else {}
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer, **extra)
    made = holdfast.torch.elastic(state, backend=BACKEND)
    watch(made, state, striker, tell)
    with made as run:
        forward = run.ddp(model) if wrap == "ddp" else model
        for step in run.steps(4096, 96, steps=steps):
            with step:
                is_due = striker.is_due(step.number, run.rank, run.world_size) or striker.is_marked()
                if is_due and (how in AT_STEP or how in ("assert", "oom")):
                    striker.strike(run.rank)
                optimizer.zero_grad()
                batch = data[step.indices]
                (forward(batch) - batch).square().mean().backward()
                if is_due and how == "backward":
                    torch.cuda.synchronize() if DEVICE == "cuda" else None
                    striker.strike(run.rank)
                if is_due and how == "collective":
                    threading.Timer(0.004, striker.strike, (run.rank,)).start()
                if wrap == "plain":
                    step.reduce_gradients(model)
                if is_due and how == "optimizer":
                    optimizer.register_step_post_hook(lambda *_: striker.strike(run.rank))
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
