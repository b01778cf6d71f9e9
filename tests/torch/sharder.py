"""A worker of one copy of a model that is split by `fully_shard`: trains, saves, and says what the whole state is.

`sharder.py FOLDER SIZE STEPS`: one copy on SIZE workers. With the steps of an earlier run it only restores.
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import TensorDataset

import holdfast.torch
from holdfast.checkpoint import Checkpointer, Every, StorageTier


class Net(nn.Module):
    """Sizes that no number of workers divides, and a weight that is split along its second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).relu())


def checksum(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(whole.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    folder, size, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(size)  # a restored state owes nothing to the one it replaces
    replica = holdfast.torch.replica(size)
    model = Net()
    fully_shard(model)
    wide = distribute_tensor(torch.randn(3, 10), replica.mesh, [Shard(1)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer, wide=wide, note="kept")
    inputs = torch.randn(48, 5, generator=torch.Generator().manual_seed(1))
    checkpoints = Checkpointer([StorageTier(folder)], every=Every(steps=4))
    with holdfast.torch.elastic(state, replicas_of=size, checkpoints=checkpoints) as run:
        for step, (rows,) in run.batches(TensorDataset(inputs), batch=12, steps=steps, drop_last=True):
            with step:
                optimizer.zero_grad()
                model(rows).square().mean().backward()
                step.reduce_gradients(model)
                optimizer.step()
        moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq", "step")]
        told = {
            "part": replica.index,
            "progress": run.progress,
            "model": checksum(list(model.parameters())),
            "moments": checksum(moments),
            "wide": checksum([state.wide]),
            "rows": list(model.first.weight._local_tensor.shape),
            "note": state.note,
        }
    checkpoints.close()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
