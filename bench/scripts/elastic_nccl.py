"""Training in the process with NCCL: `holdfast launch --nproc-per-node N elastic_nccl.py FOLDER HOW WRAP TRIALS [GIB]`.

All ranks share one GPU. NCCL allows that where each says that it is on a host of its own, and talks over sockets
(NCCL_SOCKET_IFNAME=lo, NCCL_IB_DISABLE=1). Whenever all workers have
done `CALM_STEPS` steps together, the last rank meets a fault as HOW says, until there were TRIALS of them; some trials
have a second fault right after the first. Then all train a few steps more and end. Each worker appends lines `time rank
what` to `FOLDER/PID`: `started`, `ready` (its model is on the device), `fault-K` (it meets one in trial K),
`form-begin` and `form-end` of the process group, `sync-begin` and `sync-end` of the state's transfer, and
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

os.environ["NCCL_HOSTID"] = f"host-{os.getpid()}"

import torch
from torch import nn

import holdfast.torch

CALM_STEPS, STEP_S = 12, 0.02
#: More than any job comes to; the end is agreed on by a file.
STEPS_MAX = 100_000
#: The fault comes at the beginning of the step, whatever else happens.
AT_STEP = ("step", "stop", "twice", "transfer", "form", "assert", "oom")
#: Trials with a second fault: of the first of those that are left, or of the worker in the dead one's place.
SECOND = ("twice", "transfer", "form")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
BYTES_PER_GIB = 2**30


class Faults:
    """The faults of a job: which is next, and whether this process meets it. Files in `folder` are what all know."""

    def __init__(self, folder: Path, how: str, trials: int, tell: Callable[[int, object], None]) -> None:
        self.folder, self.how, self.trials, self._tell = folder, how, trials, tell
        #: Whether this worker came into a job that had met a fault.
        self.is_newcomer = self._trial() > 0
        self._full = 0
        self._mine: int | None = None

    def _trial(self) -> int:
        return len(list(self.folder.glob("first-*")))

    def _once(self, name: str) -> bool:
        try:
            (self.folder / name).open("x").close()
        except FileExistsError:
            return False
        return True

    def _begin_second(self) -> int | None:
        """Take the second fault of this trial; None if there is none, or another process took it."""
        trial = self._trial() - 1
        return trial if self.how in SECOND and trial >= 0 and self._once(f"second-{trial}") else None

    def is_due(self, rank: int, size: int) -> bool:
        """Whether this rank meets a fault in this step; also sets the end once all trials are over."""
        if self._mine is not None:
            return True  # a worker that runs out of memory does so each time that it tries again
        if self.how == "twice" and not self.is_newcomer and rank == 0 and size == self.workers - 1:
            self._mine = self._begin_second()
            return self._mine is not None
        self._full = self._full + 1 if size == self.workers else 0
        if self._full <= CALM_STEPS or rank != size - 1:
            return False
        trial = self._trial()
        if trial < self.trials and self._once(f"first-{trial}"):
            self._mine = trial
        return self._mine is not None

    @property
    def workers(self) -> int:
        """How many workers the job has when all are there."""
        return int(os.environ["LOCAL_WORLD_SIZE"])

    def is_over(self, number: int, rank: int, size: int) -> bool:
        """Whether all trials were done some steps ago; all ranks end after the same step."""
        mark = self.folder / "end"
        if self._trial() >= self.trials and self._full > CALM_STEPS and rank == size - 1 and not mark.exists():
            part = self.folder / "end.part"
            part.write_text(str(number + CALM_STEPS))
            part.rename(mark)
        return mark.exists() and number >= int(mark.read_text())

    def strike(self, rank: int) -> None:
        """Say so, and do it."""
        self._tell(rank, f"fault-{self._mine}")
        if self.how == "assert":
            values = torch.zeros(4, device=DEVICE)
            print(values[torch.tensor([7], device=DEVICE)].sum().item())
        elif self.how == "oom":
            torch.empty(2**50, dtype=torch.uint8, device=DEVICE)
        else:
            os.kill(os.getpid(), signal.SIGSTOP if self.how == "stop" else signal.SIGKILL)

    def strike_newcomer(self, how: str, rank: int, delay_s: float) -> None:
        """Meet the second fault a moment from now, if this is the worker in the dead one's place."""
        if self.how != how or not self.is_newcomer or self._mine is not None:
            return
        self._mine = self._begin_second()
        if self._mine is not None:
            threading.Timer(delay_s, self.strike, (rank,)).start()


def watch(run: Any, state: Any, faults: Faults, tell: Callable[[int, object], None]) -> None:
    """Note when the state is taken over, and meet faults there and while groups form, where that is asked for."""
    form = run.groups.form
    sync = state.sync

    def forming(view: Any, membership: Any) -> None:
        faults.strike_newcomer("form", view.rank, 0.01)
        tell(view.rank, "form-begin")
        form(view, membership)
        tell(view.rank, "form-end")

    def syncing(world_size: int, rank: int) -> None:
        tell(rank, "sync-begin")
        faults.strike_newcomer("transfer", rank, 0.001)
        sync(world_size, rank)
        tell(rank, "sync-end")

    run.groups.form = forming
    state.sync = syncing


def main() -> None:
    folder, how, wrap, trials = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    gib = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    log = (folder / str(os.getpid())).open("a", buffering=1)

    def tell(rank: int, what: object) -> None:
        log.write(f"{time.monotonic():.6f} {rank} {what}\n")

    tell(-1, "started")
    faults = Faults(folder, how, trials, tell)
    data = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    extra = {"ballast": torch.ones(int(gib * BYTES_PER_GIB) // 4, device=DEVICE)} if gib else {}
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer, **extra)
    tell(-1, "ready")
    made = holdfast.torch.elastic(state, backend=BACKEND)
    watch(made, state, faults, tell)
    with made as run:
        forward = run.ddp(model) if wrap == "ddp" else model
        for step in run.steps(4096, 96, steps=STEPS_MAX):
            with step:
                is_due = faults.is_due(run.rank, run.world_size)
                if is_due and how in AT_STEP:
                    faults.strike(run.rank)
                optimizer.zero_grad()
                batch = data[step.indices]
                (forward(batch) - batch).square().mean().backward()
                if is_due and how == "backward":
                    torch.cuda.synchronize() if DEVICE == "cuda" else None
                    faults.strike(run.rank)
                if is_due and how == "collective":
                    threading.Timer(0.004, faults.strike, (run.rank,)).start()
                if wrap == "plain":
                    step.reduce_gradients(model)
                if is_due and how == "optimizer":
                    optimizer.register_step_post_hook(lambda *_: faults.strike(run.rank))
                optimizer.step()
                time.sleep(STEP_S)
            if step.committed:
                tell(run.rank, f"{step.number}/{run.world_size}")
                if faults.is_over(step.number, run.rank, run.world_size):
                    break
        rank = run.rank
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    (folder / f"digest-{rank}").write_text(digest.hexdigest())


if __name__ == "__main__":
    main()
