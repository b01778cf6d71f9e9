"""One worker of the in-process bench on our side: DistributedDataParallel over gloo inside `holdfast.torch.elastic`."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from work import BATCH, Log, compute, make, options

from holdfast.rendezvous.api import RendezvousParameters
from holdfast.torch import TorchState, elastic
from holdfast.train.membership import Membership, worker_settings


def main() -> None:
    told = options()
    os.environ["HOLDFAST_HOME"] = told["home"]
    # Under `holdfast launch` the workers are started, and replaced, by the agent: each takes a log of its own.
    log = Log(told["log"] if "log" in told else f"{told['folder']}/worker-{os.getpid()}")
    model, optimizer, inputs, labels = make()
    state = TorchState(model=model, optimizer=optimizer)
    membership = None
    if "endpoint" in told:
        settings = worker_settings(2, is_host=False, **told.get("settings", {}))
        membership = Membership(
            RendezvousParameters(backend="holdfast", endpoint=told["endpoint"], run_id="bench", **settings)
        )
    plain = Plain(log, told) if told.get("plain_every") else None
    with elastic(state, backend="gloo", membership=membership) as run:
        wrapped = run.ddp(model)
        began, clean = time.monotonic(), 0
        for step, (points, classes) in run.batches(TensorDataset(inputs, labels), 2 * BATCH, epochs=None):
            with step:
                optimizer.zero_grad()
                compute(wrapped, points, classes, told["sleep_s"])
                optimizer.step()
            if run.progress > step.number:
                if plain is None:
                    log.step(step.number, run.world_size)
                clean += 1
                if plain is not None and clean == told["plain_every"]:
                    log.write(elastic_s=(time.monotonic() - began) / clean)
                    if plain.block():
                        run.stop()
                    began, clean = time.monotonic(), 0


class Plain:
    """The same steps without us, in the same processes and over the same group, in blocks between ours."""

    def __init__(self, log: Log, told: dict[str, Any]) -> None:
        self._log = log
        self._told = told
        self._blocks = 0
        self._parts: Any = None

    def block(self) -> bool:
        """Do a block, and say whether it was the last."""
        if self._parts is None:
            model, optimizer, inputs, labels = make()
            data = TensorDataset(inputs, labels)
            loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
            self._parts = DistributedDataParallel(model), optimizer, loader
        model, optimizer, loader = self._parts
        count = self._told["plain_every"]
        dist.barrier()
        began = time.monotonic()
        for inputs, labels in itertools.islice(_cycle(loader), count):
            optimizer.zero_grad()
            compute(model, inputs, labels, self._told["sleep_s"])
            optimizer.step()
        self._log.write(plain_s=(time.monotonic() - began) / count)
        dist.barrier()
        self._blocks += 1
        return self._blocks >= self._told["blocks"]


def _cycle(loader: DataLoader[Any]) -> Iterator[Any]:
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


if __name__ == "__main__":
    main()
