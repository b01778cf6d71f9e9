"""What the campaign trains with replicas: a small network that two workers hold together, split by `fully_shard`.

As in `torch_training` its end says whether every sample was used once, everything is in double precision, and with
NCCL all workers share the GPUs of this machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.chaos.inject import FOLDER_VARIABLE, at, note_pid
from holdfast.chaos.schedule import REPLICA, Moment
from holdfast.chaos.torch_training import HIDDEN, SAVE_EVERY, Samples, WatchedTier, describe, share_gpus, watch_sync
from holdfast.chaos.training import BATCH, FEATURES, LEARNING_RATE, SAMPLES, STEP, watch_rendezvous
from holdfast.checkpoint.checkpointer import Checkpointer
from holdfast.checkpoint.choose import Every

if TYPE_CHECKING:
    from holdfast.torch.run import TorchRun, TorchStep
    from holdfast.torch.state import TorchState


def make_state(steps: int, device: str) -> TorchState:
    """Return a fresh model of which this worker holds a part, with its optimizer and what is counted beside them."""
    import torch
    from torch.distributed.fsdp import fully_shard

    from holdfast.torch.state import TorchState

    torch.manual_seed(3)
    layers = torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)
    model = torch.nn.Sequential(*layers).double().to(device)
    for layer in (layers[0], layers[2], model):
        fully_shard(layer)
    return TorchState(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9),
        used=torch.zeros(SAMPLES, dtype=torch.float64, device=device),
        #: With how many replicas each step was done.
        sizes=torch.zeros(steps, dtype=torch.int64),
        seed=5,
    )


def do_step(run: TorchRun, step: TorchStep, data: Any, pause_s: float) -> None:
    """Do one step, with a fault wherever one is due."""
    import torch

    state: Any = run.state
    STEP[0] = step.number
    at(Moment.FORWARD, step.number, run.share[0])
    state.optimizer.zero_grad()
    inputs, wanted, chosen = (each.to(state.used.device) for each in data)
    loss = torch.nn.functional.mse_loss(state.model(inputs).squeeze(1), wanted)
    time.sleep(pause_s)
    (loss * step.loss_scale).backward()  # type: ignore[no-untyped-call, unused-ignore]
    at(Moment.REDUCE, step.number, run.share[0])
    step.reduce_gradients(state.model)
    ones = torch.zeros_like(state.used)
    ones[chosen] = 1.0
    step.sum(ones)
    state.optimizer.step()
    state.used += ones
    state.sizes[step.number] = run.world_size


def watch_transfer(state: TorchState, rank: int) -> None:
    """Make sending and taking over this worker's part moments at which something may happen."""
    capture, apply = state.capture_snapshot, state.apply_snapshot

    def watched_capture() -> Any:
        captured = capture()
        at(Moment.TRANSFER, STEP[0], rank)
        return captured

    def watched_apply(snapshot: Any) -> None:
        at(Moment.TRANSFER, STEP[0], rank)
        apply(snapshot)

    state.capture_snapshot = watched_capture  # type: ignore[method-assign]
    state.apply_snapshot = watched_apply  # type: ignore[method-assign]


def main() -> None:
    """Train until the steps of the schedule are done, and leave the result in the folder."""
    import torch

    from holdfast.torch.replicas import replica
    from holdfast.torch.run import elastic

    folder = Path(os.environ[FOLDER_VARIABLE])
    steps, pause_s, least, backend = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    device = share_gpus() if backend == "nccl" else "cpu"
    torch.set_num_threads(1)
    note_pid(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    index = replica(REPLICA, backend=backend).index
    state: Any = make_state(steps, device)
    watch_sync(state, lambda rank: rank * REPLICA + index)
    watch_transfer(state, int(os.environ["RANK"]))
    epochs = -(-steps * BATCH // SAMPLES)
    kept = Checkpointer([WatchedTier(folder / "checkpoints")], every=Every(steps=SAVE_EVERY))
    with kept, elastic(state, backend=backend, checkpoints=kept, min_workers=least, replicas_of=REPLICA) as run:
        watch_rendezvous(run, int(os.environ["RANK"]))
        state.optimizer.register_step_pre_hook(lambda *_: at(Moment.OPTIMIZER, STEP[0], run.share[0]))
        for step, data in run.batches(Samples(), BATCH, epochs=epochs, drop_last=True):
            with step:
                do_step(run, step, data, pause_s)
            if run.rank != 0:
                at(Moment.CHECKPOINT, step.number, run.share[0])
        (folder / f"result-{os.getpid()}.json").write_text(json.dumps(describe(run)))


if __name__ == "__main__":
    main()
