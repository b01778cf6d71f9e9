"""What the campaign trains with torch, over gloo or NCCL: a small network that tells if every sample was used once.

As in `training`, each worker also brings a one for every sample that it has in the step, and these are summed through
the same process group, in the same transaction. Everything is in double precision, so that another number of workers,
which sums in another order, changes the end by no more than rounding.

With NCCL all workers share the GPUs of this machine, also where there is only one: NCCL allows several ranks on one GPU
if each says that it is on a host of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.chaos.inject import FOLDER_VARIABLE, at
from holdfast.chaos.schedule import Moment
from holdfast.chaos.training import BATCH, FEATURES, LEARNING_RATE, SAMPLES, STEP, watch_rendezvous
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.checksums import Checksums
from holdfast.checkpoint.choose import Every
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.storage import StorageTier
from holdfast.train.membership import from_environ

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from holdfast.torch.run import TorchRun, TorchStep
    from holdfast.torch.state import TorchState

#: How gradients are averaged: after the backward pass, or during it by DistributedDataParallel.
REDUCE, DDP = "reduce", "ddp"
HIDDEN = 8
SAVE_EVERY = 5


@dataclass(frozen=True)
class Options:
    """What the campaign says on the command line."""

    steps: int
    pause_s: float
    mode: str
    #: Fewer workers than this wait for more.
    least: int
    #: With random numbers in the model, which only a run of the same size draws alike.
    dropout: float
    backend: str = "gloo"

    @property
    def device(self) -> str:
        """Where the model is."""
        return "cuda" if self.backend == "nccl" else "cpu"


class WatchedTier(StorageTier):
    """Storage where something may happen when half of a checkpoint is written; rank 0 writes them."""

    def save(self, key: Key, state: memoryview, sums: Checksums) -> None:
        """Write a checkpoint, if nothing happens on the way."""
        half = f"{key.folder}/{key.stem}~half.state"
        self._backend.write(half, state[: len(state) // 2])
        at(Moment.CHECKPOINT, key.step, 0)
        self._backend.remove(half)
        super().save(key, state, sums)


class Samples:
    """Points, what is wanted for each, and its number."""

    def __init__(self) -> None:
        import torch

        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
        wanted = self.inputs @ torch.randn(FEATURES, generator=generator, dtype=torch.float64)
        self.wanted = torch.tanh(wanted)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.wanted[index], index


def share_gpus() -> str:
    """Prepare this process for NCCL on a GPU that it may share with others; returns the kind of device."""
    import torch

    os.environ.update(NCCL_HOSTID=f"host-{os.getpid()}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return "cuda"


def make_state(options: Options) -> TorchState:
    """Return a fresh model with its optimizer and what is counted beside them."""
    import torch

    from holdfast.torch.state import TorchState

    torch.manual_seed(3)
    layers = torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)
    model = torch.nn.Sequential(*layers, torch.nn.Dropout(options.dropout)).double().to(options.device)
    return TorchState(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9),
        used=torch.zeros(SAMPLES, dtype=torch.float64, device=options.device),
        #: With how many workers each step was done.
        sizes=torch.zeros(options.steps, dtype=torch.int64),
        seed=5,
    )


def do_step(run: TorchRun, step: TorchStep, data: Any, model: torch.nn.Module, options: Options) -> None:
    """Do one step, with a fault wherever one is due."""
    import torch
    import torch.distributed as dist

    state: Any = run.state
    STEP[0] = step.number
    at(Moment.FORWARD, step.number, run.rank)
    state.optimizer.zero_grad()
    inputs, wanted, chosen = (each.to(options.device) for each in data)
    loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), wanted)
    time.sleep(options.pause_s)
    if options.mode == DDP:
        at(Moment.REDUCE, step.number, run.rank)
    loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
    if options.mode != DDP:
        at(Moment.REDUCE, step.number, run.rank)
        step.reduce_gradients(model)
    ones = torch.zeros(SAMPLES, dtype=torch.float64, device=options.device)
    ones[chosen] = 1.0
    dist.all_reduce(ones)
    state.optimizer.step()
    state.used += ones
    state.sizes[step.number] = run.world_size


def watch_sync(state: TorchState, worker: Callable[[int], int] = int) -> None:
    """Make every sync one of the moments at which something may happen; `worker` numbers a round's rank."""
    sync = state.sync

    def watched(world_size: int, rank: int) -> None:
        at(Moment.SYNC, STEP[0], worker(rank))
        sync(world_size, rank)

    state.sync = watched  # type: ignore[method-assign]


def describe(run: TorchRun) -> dict[str, Any]:
    """Return what is compared with the undisturbed run; all workers of a replica call this together."""
    state: Any = run.state
    parameters = list(state.model.parameters())
    momenta = [state.optimizer.state[parameter]["momentum_buffer"] for parameter in parameters]
    return {
        "weights": _bits(parameters),
        "momentum": _bits(momenta),
        "used": [int(count) for count in state.used],
        "sizes": state.sizes.tolist(),
        "steps": run.progress,
        "world_size": run.world_size,
        "rank": run.share[0],
    }


def main() -> None:
    """Train until the steps of the schedule are done, and leave the result in the folder."""
    import torch

    from holdfast.torch.run import elastic

    folder = Path(os.environ[FOLDER_VARIABLE])
    steps, pause_s, mode, least, dropout, backend = sys.argv[1:]
    options = Options(int(steps), float(pause_s), mode, int(least), float(dropout), backend)
    if backend == "nccl":
        share_gpus()
    torch.set_num_threads(1)
    state: Any = make_state(options)
    watch_sync(state)
    epochs = -(-options.steps * BATCH // SAMPLES)
    kept = Checkpointer([WatchedTier(folder / "checkpoints")], every=Every(steps=SAVE_EVERY))
    made = elastic(state, backend=backend, checkpoints=kept, membership=from_environ(min_workers=options.least))
    with kept, made as run:
        watch_rendezvous(run, int(os.environ["RANK"]))
        state.optimizer.register_step_pre_hook(lambda *_: at(Moment.OPTIMIZER, STEP[0], run.rank))
        model: Any = run.ddp(state.model) if options.mode == DDP else state.model
        for step, data in run.batches(Samples(), BATCH, epochs=epochs):
            with step:
                do_step(run, step, data, model, options)
            if run.rank != 0:
                at(Moment.CHECKPOINT, step.number, run.rank)
        (folder / f"result-{os.getpid()}.json").write_text(json.dumps(describe(run)))


def _bits(tensors: list[Any]) -> str:
    import torch

    from holdfast.torch.sharded import is_sharded

    whole = [tensor.full_tensor() if is_sharded(tensor) else tensor for tensor in tensors]
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in whole])
    return bytes(flat.cpu().numpy().tobytes()).hex()


if __name__ == "__main__":
    main()
