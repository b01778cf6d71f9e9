"""The work that both sides of the in-process bench do: a small model, and a sleep that makes the step longer."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import nn

SAMPLES, WIDTH, BATCH = 4096, 64, 32


class Log:
    """Steps that were done, as lines of time, number and world size; the clock is the same for all on this machine."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: PTH123, SIM115

    def step(self, number: int, world_size: int) -> None:
        self._file.write(f"{time.monotonic():.6f} {number} {world_size}\n")

    def write(self, **data: Any) -> None:
        self._file.write("# " + json.dumps(data) + "\n")


def options() -> dict[str, Any]:
    torch.set_num_threads(1)
    return json.loads(sys.argv[1])


def make(device: str = "cpu") -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    inputs = torch.randn(SAMPLES, WIDTH).to(device)
    labels = torch.randint(0, 10, (SAMPLES,)).to(device)
    model = model.to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), inputs, labels


def compute(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, sleep_s: float) -> None:
    """Forward and backward; the sleep stands for what a larger model would take."""
    loss = nn.functional.cross_entropy(model(inputs), labels)
    if sleep_s:
        time.sleep(sleep_s)
    loss.backward()
