"""A worker of the first torchelastic's scenarios: all workers together sum the integers 11 to 30, which gives 410.

Run as a script with one JSON argument; see `Summing`. Each step takes one integer per worker, the same on all, and adds
them up through a collective. It tells what it does as JSON lines and waits for a line where it is told to.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from typing import Any

import numpy as np
from torchelastic.checkpoint import FileSystemCheckpointManager, set_checkpoint_manager
from torchelastic.p2p import CoordinatorP2P

from torchelastic import NonRetryableException, SimpleWorkerStats, State, run_train, train

NUMBERS = list(range(11, 31))


def tell(event: str, **data: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **data}) + "\n")
    sys.stdout.flush()


class Summing(State):
    """The sum so far and how many integers are in it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.index = 0
        self.total = 0
        self.syncs = 0

    def capture_snapshot(self) -> Any:
        return None if self.options.get("no_rollback") else {"index": self.index, "total": self.total}

    def apply_snapshot(self, snapshot: Any) -> None:
        self.index, self.total = snapshot["index"], snapshot["total"]

    def should_save_checkpoint(self, rank: int) -> bool:
        return "checkpoints" in self.options

    def sync(self, world_size: int, rank: int) -> None:
        self.syncs += 1
        if self.options.get("fail_sync") == self.syncs:
            raise RuntimeError("sync failed once")
        if not self.options.get("no_rollback"):
            super().sync(world_size, rank)
        tell("synced", world=world_size, rank=rank, index=self.index, total=self.total)


class RegroupingCoordinator(CoordinatorP2P):
    """Regroups after every step, without asking the others."""

    def should_rendezvous(self, state: State) -> bool:
        return True

    def report_progress(self, state: State) -> None:
        tell("ended", at=time.monotonic_ns())
        super().report_progress(state)

    def _leave_group(self) -> None:
        tell("left", at=time.monotonic_ns())
        super()._leave_group()


class Worker:
    """One worker; `at` maps the index at which something happens to what happens."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.at = dict(options.get("at", {}))
        kind = RegroupingCoordinator if options.get("regroup") else CoordinatorP2P
        self.coordinator = kind(
            c10d_backend=options.get("backend", "ring"),
            init_method=options["url"],
            max_num_trainers=options.get("most", 4),
            process_group_timeout=options.get("timeout_ms", 60_000),
        )

    def sum(self, value: int) -> int:
        if self.options.get("backend", "ring") == "ring":
            return int(self.coordinator.trainer.ring.all_reduce(np.array([value]))[0])
        import torch
        import torch.distributed as dist

        tensor = torch.tensor([value])
        dist.all_reduce(tensor)
        return int(tensor.item())

    def step(self, state: Summing) -> tuple[Summing, SimpleWorkerStats]:
        if state.index >= len(NUMBERS):
            raise StopIteration
        trainer = self.coordinator.trainer
        self.meet_fate(state)
        mine = state.index + trainer.rank
        value = NUMBERS[mine] if mine < len(NUMBERS) else 0
        state.index += trainer.world_size
        state.total += self.sum(value)
        tell("step", index=state.index, total=state.total, world=trainer.world_size, rank=trainer.rank)
        if self.options.get("linger"):  # the others are done with this step
            trainer.membership.wait_broken(self.options["linger"])
        return state, SimpleWorkerStats(self.options.get("rate", 1.0))

    def meet_fate(self, state: Summing) -> None:
        due = [at for at in self.at if int(at) <= state.index]
        for at in due:
            fate = self.at[at] if self.options.get("always") else self.at.pop(at)
            tell("fate", fate=fate, index=state.index)
            if fate == "retry":
                state.index += 1000
                raise RuntimeError("a retryable failure")
            if fate == "bug":
                raise NameError("a bug")
            if fate == "hopeless":
                raise NonRetryableException("there is no hope")
            if fate == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fate == "orphan":
                self.leave_child()
                os.kill(os.getpid(), signal.SIGKILL)
            if fate == "loop":
                while True:
                    pass
            if fate.startswith("await"):
                # Stay in this step until so many are in the round or have knocked.
                trainer = self.coordinator.trainer
                while trainer.world_size + trainer.membership.newcomers < int(fate.partition(":")[2]):
                    trainer.membership.wait_broken(0.01)

    def leave_child(self) -> None:
        """Fork, as a data loader does, a child that lives on when its parent is killed."""
        with warnings.catch_warnings(action="ignore"):  # newer Pythons warn of the threads that such a parent has
            pid = os.fork()
        if pid:
            tell("forked", pid=pid)
            return
        with open(os.devnull, "w") as null:  # noqa: PTH123 - the reader of our output waits for its end
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
        while True:
            signal.pause()

    def run(self) -> None:
        import logging

        logging.basicConfig(level="INFO")
        if "checkpoints" in self.options:
            set_checkpoint_manager(FileSystemCheckpointManager(self.options["checkpoints"]))
        CoordinatorP2P.MONITOR_PROGRESS_FREQ = self.options.get("monitor_every", 1000)
        state = Summing(self.options)
        if self.options.get("generator"):

            def steps(current: Summing) -> Any:
                while current.index < len(NUMBERS):
                    yield self.step(current)[1]

            run_train(self.coordinator, steps, state)
        else:
            state = train(self.coordinator, self.step, state)
        relative = getattr(self.coordinator, "last_relative_prog_rate", None)
        tell("done", total=state.total, relative=relative, slow=self.coordinator.is_worker_straggler)


if __name__ == "__main__":
    Worker(json.loads(sys.argv[1])).run()
