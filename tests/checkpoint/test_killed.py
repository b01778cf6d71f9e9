"""A worker that is killed again and again, at any moment, and goes on from its checkpoints each time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier

np = pytest.importorskip("numpy")

LIVES = 4
#: Goes on from where it finds itself; every state can be told from its step alone.
WORKER = """
import sys
import numpy as np
from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier

folder, tiers = sys.argv[1], sys.argv[2].split(",")
known = {"memory": MemoryTier(f"{folder}/memory"), "storage": StorageTier(f"{folder}/storage", keep=2)}
with Checkpointer([known[name] for name in tiers]) as checkpoints:
    found = checkpoints.restore()
    step = found.step if found else 0
    if found:
        assert (found.tree["w"] == step).all() and found.tree["step"] == step
    print(step, flush=True)
    while True:
        step += 1
        assert checkpoints.save(step, {"w": np.full(1_000_000, step), "step": step})
        if tiers != ["memory"]:
            checkpoints.wait()
        print(step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("tiers", ["memory", "storage", "memory,storage"])
@pytest.mark.parametrize("seed", range(2))
def test_no_step_that_was_saved_is_ever_lost(tmp_path: Path, child: Callable[..., Any], tiers: str, seed: int) -> None:
    """A worker that heard that a step is saved finds it, or a newer one, whole, in every later life."""
    lengths = random.Random(seed)
    last = 0
    for _ in range(LIVES):
        worker = child(WORKER, tmp_path, tiers)
        begun = int(worker.heard())
        assert begun >= last
        for _ in range(lengths.randrange(1, 6)):
            last = int(worker.heard())
        worker.kill()  # by now it is somewhere in the next save

    known = [MemoryTier(tmp_path / "memory"), StorageTier(tmp_path / "storage")]
    with Checkpointer(known) as checkpoints:
        found = checkpoints.restore()

    assert found is not None
    assert found.step >= last
    assert (found.tree["w"] == found.step).all()
    for entry in known[1].entries():
        known[1].verify(entry.key)  # type: ignore[attr-defined]
