"""What the campaign trains with torch over gloo: a small network whose end says whether every sample was used once.

As in `training`, each worker also brings a one for every sample that it has in the step, and these are summed through
the same process group, in the same transaction. Everything is in double precision, so that another number of workers,
which sums in another order, changes the end by no more than rounding.
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


def make_state(options: Options) -> TorchState:
    """Return a fresh model with its optimizer and what is counted beside them."""
    import torch

    from holdfast.torch.state import TorchState

    torch.manual_seed(3)
    layers = torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)
    model = torch.nn.Sequential(*layers, torch.nn.Dropout(options.dropout)).double()
    return TorchState(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9),
        used=torch.zeros(SAMPLES, dtype=torch.float64),
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
    inputs, wanted, chosen = data
    loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), wanted)
    time.sleep(options.pause_s)
    if options.mode == DDP:
        at(Moment.REDUCE, step.number, run.rank)
    loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
    if options.mode != DDP:
        at(Moment.REDUCE, step.number, run.rank)
        step.reduce_gradients(model)
    ones = torch.zeros(SAMPLES, dtype=torch.float64)
    ones[chosen] = 1.0
    dist.all_reduce(ones)
    state.optimizer.step()
    state.used += ones
    state.sizes[step.number] = run.world_size


def watch_sync(state: TorchState) -> None:
    """Make every sync one of the moments at which something may happen."""
    sync = state.sync

    def watched(world_size: int, rank: int) -> None:
        at(Moment.SYNC, STEP[0], rank)
        sync(world_size, rank)

    state.sync = watched  # type: ignore[method-assign]


def describe(run: TorchRun) -> dict[str, Any]:
    """Return what is compared with the undisturbed run."""
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
        "rank": run.rank,
    }


def main() -> None:
    """Train until the steps of the schedule are done, and leave the result in the folder."""
    import torch

    from holdfast.torch.run import elastic

    folder = Path(os.environ[FOLDER_VARIABLE])
    options = Options(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
    torch.set_num_threads(1)
    state: Any = make_state(options)
    watch_sync(state)
    epochs = -(-options.steps * BATCH // SAMPLES)
    kept = Checkpointer([WatchedTier(folder / "checkpoints")], every=Every(steps=SAVE_EVERY))
    made = elastic(state, backend="gloo", checkpoints=kept, membership=from_environ(min_workers=options.least))
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


def _bits(tensors: list[torch.Tensor]) -> str:
    import torch

    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return bytes(flat.numpy().tobytes()).hex()


if __name__ == "__main__":
    main()
