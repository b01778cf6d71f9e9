"""A small Llama that two workers hold together, split by `fully_shard`, in copies that outlive each other.

Run it with `holdfast launch --nproc-per-node 4 --max-restarts 3 examples/fsdp_llama/train.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import holdfast.torch

WIDTH, HEADS, LAYERS, CONTEXT, SYMBOLS = 32, 4, 2, 32, 128
#: So many workers hold one copy of the model. "node" would take all workers of a node.
REPLICA = 2


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.queries_keys_values(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        queries, keys = turn(parts[0], angles), turn(parts[1], angles)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, parts[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


def turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Turn pairs of numbers by an angle that grows with the position."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Layer(nn.Module):
    """Attention and a gated feed-forward network, each after a normalisation and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_forward = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x), angles)
        normal = self.before_forward(x)
        return x + self.down(nn.functional.silu(self.gate(normal)) * self.up(normal))


class Llama(nn.Module):
    """The model: symbols in, the next symbol's scores out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = nn.RMSNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        half = WIDTH // HEADS // 2
        speeds = 1.0 / 10_000 ** (torch.arange(half, device=symbols.device) / half)
        angles = torch.arange(symbols.shape[1], device=symbols.device)[:, None] * speeds
        x = self.embedding(symbols)
        for layer in self.layers:
            x = layer(x, angles)
        return self.scores(self.last(x))


def read_text() -> TensorDataset:
    """Cut this very file into pieces of text."""
    text = torch.tensor([min(byte, SYMBOLS - 1) for byte in Path(__file__).read_bytes()])
    return TensorDataset(text.unfold(0, CONTEXT + 1, 7).contiguous())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text in a step, over all workers together")
    parser.add_argument("--min-workers", type=int, default=1, help="fewer than this wait for replacements")
    parser.add_argument("--kill-at", type=int, help="let the last worker die in this step, once, to see what happens")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    # torch's default process group is now that of this copy of the model, so `fully_shard` needs to know no more.
    replica = holdfast.torch.replica(REPLICA)
    model = Llama().to(replica.device_type)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer)
    with holdfast.torch.elastic(state, replicas_of=REPLICA, min_workers=options.min_workers) as run:
        for step, (pieces,) in run.batches(read_text(), options.batch, steps=options.steps, drop_last=True):
            with step:
                if step.number == options.kill_at and first_life() and run.share[0] == run.share[1] - 1 > REPLICA:
                    os.kill(os.getpid(), signal.SIGKILL)
                pieces = pieces.to(replica.device_type)
                scores = model(pieces[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                step.reduce_gradients(model)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                mean = step.mean(loss)
                optimizer.step()
            if step.committed and run.share[0] == 0 and step.number % 20 == 0:
                print(f"step {step.number}: {run.world_size} copies, loss {mean:.4f}", flush=True)
        checksum = hashlib.sha256()
        for parameter in model.parameters():
            checksum.update(parameter.full_tensor().detach().cpu().numpy().tobytes())
        if run.share[0] == 0:
            print(f"done: loss {mean:.4f}, model {checksum.hexdigest()[:16]}")


def first_life() -> bool:
    """Whether this worker has not been replaced yet."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


if __name__ == "__main__":
    main()
