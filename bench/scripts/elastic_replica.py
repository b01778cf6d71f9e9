"""One worker of the bench of replicas: two workers hold one copy of a model, split by `fully_shard`, over gloo.

`holdfast launch elastic_replica.py JSON`. Beside the model each worker has a ballast of so many MiB, which is part of
the state and moves with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from work import Log, options

import holdfast.torch
from holdfast.torch.gradients import Reducer

REPLICA, WIDTH, BATCH = 2, 128, 32


class Ballast(nn.Module):
    """Memory that a step does not touch."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(mib << 18), requires_grad=False)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def compute(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, sleep_s: float) -> None:
    optimizer.zero_grad()
    time.sleep(sleep_s)
    model(inputs).square().mean().backward()


def main() -> None:
    told: dict[str, Any] = options()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log = Log(f"{told['folder']}/worker-{os.getpid()}")
    log.write(rank=int(os.environ["RANK"]))
    holdfast.torch.replica(REPLICA)
    model, optimizer = make()
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer, ballast=Ballast(told["mib"]))
    data = TensorDataset(torch.randn(1024, WIDTH))
    plain = Plain(log, told, data) if told.get("plain_every") else None
    with holdfast.torch.elastic(state, replicas_of=REPLICA) as run:
        clock, clean = Clock(), 0
        for step, (inputs,) in run.batches(data, BATCH, epochs=None, drop_last=True):
            with step:
                compute(model, optimizer, inputs, told["sleep_s"])
                step.reduce_gradients(model)
                optimizer.step()
            if not step.committed:
                continue
            clean += 1
            if plain is None:
                log.step(step.number, run.world_size)
            elif clean == told["plain_every"]:
                log.write(elastic=clock.for_each(clean))
                if plain.block(run):
                    run.stop("the cost is measured")
                clock, clean = Clock(), 0


class Clock:
    """What passes from now on, by the clock and of this process's processor time."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    def for_each(self, count: int) -> dict[str, float]:
        """Return what a step has taken."""
        wall, cpu = self._began
        return {"wall_s": (time.monotonic() - wall) / count, "cpu_s": (time.process_time() - cpu) / count}


class Plain:
    """The same steps without us, in the same processes and over the same groups, in blocks between ours."""

    def __init__(self, log: Log, told: dict[str, Any], data: TensorDataset) -> None:
        self._log = log
        self._told = told
        self._blocks = 0
        self._model, self._optimizer = make()
        self._reducer = Reducer(self._model)
        self._batches = self._load(data)

    def block(self, run: Any) -> bool:
        """Do a block, and say whether it was the last."""
        count = self._told["plain_every"]
        clock = Clock()
        for _ in range(count):
            compute(self._model, self._optimizer, next(self._batches), self._told["sleep_s"])
            self._reducer.reduce(1 / run.world_size, run.groups.begin_sum)
            self._optimizer.step()
        self._log.write(plain=clock.for_each(count))
        self._blocks += 1
        return self._blocks >= self._told["blocks"]

    def _load(self, data: TensorDataset) -> Iterator[torch.Tensor]:
        """Yield a worker's share of a batch again and again, as torch loads it."""
        loader = DataLoader(data, BATCH // int(os.environ["WORLD_SIZE"]), shuffle=True, drop_last=True)
        while True:
            for (inputs,) in loader:
                yield inputs


if __name__ == "__main__":
    main()
