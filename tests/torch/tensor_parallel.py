"""A worker of copies of a model that are split by tensor parallelism, beside the same model in one piece.

`tensor_parallel.py OF STEPS KILL_AT`: all workers of a copy have the same samples. In step KILL_AT the last worker
dies, once. At the end every worker says what it has: both models must be equal but for rounding.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.data import TensorDataset

import holdfast.torch

SAMPLES, BATCH, LENGTH, WIDTH = 48, 12, 4, 6


class Block(nn.Module):
    """A part of a transformer: in the normalisation each worker has some positions, in the rest some columns."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


def make() -> nn.Module:
    torch.manual_seed(0)
    return Block().double()


def split(model: nn.Module, mesh: Any) -> nn.Module:
    whole = {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()}
    model.norm.register_forward_pre_hook(lambda _, given: DTensor.from_local(given[0], mesh, [Replicate()]))
    return parallelize_module(model, mesh, whole)


def whole_of(model: nn.Module) -> list[torch.Tensor]:
    return [each.full_tensor() if isinstance(each, DTensor) else each for each in model.parameters()]


def main() -> None:
    of, steps, kill_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    replica = holdfast.torch.replica(of)
    model, plain = split(make(), replica.mesh), make()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, plain)]
    used = torch.zeros(SAMPLES)
    state: Any = holdfast.torch.TorchState(
        model=model, plain=plain, optimizer=optimizers[0], plain_optimizer=optimizers[1], used=used
    )
    inputs = torch.randn(SAMPLES, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = TensorDataset(inputs, torch.arange(SAMPLES))
    places = set()
    with holdfast.torch.elastic(state, replicas_of=of, min_workers=4, data="replica") as run:
        for step, (rows, indices) in run.batches(data, BATCH, steps=steps, drop_last=True):
            with step:
                mesh = run.mesh
                places.add((str(mesh.mesh.tolist()), str(list(mesh.get_coordinate() or ())), mesh.mesh_dim_names))
                is_last = (run.rank, replica.index) == (run.world_size - 1, replica.size - 1)
                if is_last and step.number == kill_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    os.kill(os.getpid(), signal.SIGKILL)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                model(rows).square().mean().backward()
                step.reduce_gradients(model)
                ones = torch.zeros(SAMPLES)
                ones[indices] = 1 / replica.size  # each of its workers brings them
                step.sum(ones)
                plain(inputs[ones > 0]).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
                state.used += ones
        found, wanted = whole_of(model), whole_of(plain)
        told = {
            "rank": run.rank,
            "part": replica.index,
            "places": sorted(places),
            "used": sorted(set(state.used.tolist())),
            "off": max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)),
            "model": hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in found)).hexdigest(),
        }
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
