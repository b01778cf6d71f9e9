"""The demo's training script: fits a linear model; the gradients are averaged through the store.

Nothing here is special to the demo, and it needs nothing but Holdfast. Copy the file and try it on its own:

    holdfast launch --nproc-per-node 2 --max-restarts 3 train.py /tmp/fit 100

A step uses the same points however many workers share them, so the model after step N is the same whether workers
died on the way or not. That is what the last line checks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.store import Store

Vector = list[float]

#: What the points are made with, and so what training must find.
TRUTH = (2.0, -1.0, 0.5, 3.0)
NOISE = 0.01
POINTS_PER_STEP = 96
LEARNING_RATE = 0.02


def main() -> None:
    """Train from the last checkpoint on, until the step given, or until there is a file `enough` in the folder."""
    from holdfast import heartbeat
    from holdfast.store import from_environ

    folder = Path(sys.argv[1])
    last_step = int(sys.argv[2])
    pause_s = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    rank, world, round_number = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "HOLDFAST_ROUND"))
    step, weights = load(folder)
    enough = 0.0
    with from_environ() as store:
        while not enough and step < last_step:
            time.sleep(pause_s)
            step += 1
            mine = [*share(weights, step, rank, world), float((folder / "enough").exists())]
            *gradient, loss, enough = sum_over_ranks(store, str(step), rank, world, mine)
            weights = descend(weights, gradient)
            if rank == 0:
                save(folder, step, weights)
            heartbeat(step)
            print(f"step={step} loss={loss:.6f} rank={rank} world={world} round={round_number} pid={os.getpid()}")
    if rank == 0:
        error, drift = distance(weights, TRUTH), distance(weights, without_failures(step))
        print(f"finished={step} error={error:.1e} drift={drift:.1e}")


def share(weights: Vector, step: int, rank: int, world: int) -> Vector:
    """Return this rank's share of the step's gradient and, as the last number, of its loss."""
    total = [0.0] * (len(TRUTH) + 1)
    for point in range(rank, POINTS_PER_STEP, world):
        chance = random.Random(step * POINTS_PER_STEP + point)
        inputs = [chance.gauss(0, 1) for _ in TRUTH]
        off = dot(inputs, weights) - dot(inputs, TRUTH) - NOISE * chance.gauss(0, 1)
        for place, value in enumerate([*(2 * off * each for each in inputs), off * off]):
            total[place] += value / POINTS_PER_STEP
    return total


def sum_over_ranks(store: Store, name: str, rank: int, world: int, values: Vector) -> Vector:
    """Add up the vectors of all ranks, through the store."""
    store.set(f"{name}/{rank}", array("d", values).tobytes())
    vectors = [array("d", each) for each in store.multi_get([f"{name}/{other}" for other in range(world)])]
    # The last rank to read everything deletes the keys; no rank waits for that.
    if store.add(f"{name}/read", 1) == world:
        for other in range(world):
            store.delete_key(f"{name}/{other}")
        store.delete_key(f"{name}/read")
    return [sum(column) for column in zip(*vectors, strict=True)]


def descend(weights: Vector, gradient: Vector) -> Vector:
    """Return the weights after one step."""
    return [weight - LEARNING_RATE * slope for weight, slope in zip(weights, gradient, strict=True)]


def dot(one: Vector, other: Vector | tuple[float, ...]) -> float:
    """Return the inner product of two vectors."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def distance(one: Vector, other: Vector | tuple[float, ...]) -> float:
    """Return how far two vectors are apart in the place where they differ most."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def load(folder: Path) -> tuple[int, Vector]:
    """Return the last step that was saved and the weights after it; 0 and zeros if there is none."""
    path = folder / "checkpoint.json"
    if not path.exists():
        return 0, [0.0] * len(TRUTH)
    saved = json.loads(path.read_text())
    return saved["step"], saved["weights"]


def save(folder: Path, step: int, weights: Vector) -> None:
    """Write the checkpoint in one move, so that a worker that dies at any moment leaves a whole one."""
    draft = folder / f"checkpoint.{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    draft.write_text(json.dumps({"step": step, "weights": weights}))
    draft.replace(folder / "checkpoint.json")


def without_failures(steps: int) -> Vector:
    """Return the weights that one process, never disturbed, has after so many steps."""
    weights = [0.0] * len(TRUTH)
    for step in range(1, steps + 1):
        weights = descend(weights, share(weights, step, 0, 1)[:-1])
    return weights


if __name__ == "__main__":
    main()
