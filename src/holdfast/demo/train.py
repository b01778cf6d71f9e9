"""The demo's training script: fits a linear model with numpy; the gradients are averaged through the store.

Nothing here is special to the demo. Copy the file and try it on its own:

    holdfast launch --nproc-per-node 2 --max-restarts 3 train.py /tmp/fit 100

A step uses the same points however many workers share them, so the model after step N is the same whether workers
died on the way or not. That is what the last line checks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from holdfast.store import Store

    Array = np.ndarray[Any, np.dtype[np.float64]]

#: What the points are made with, and so what training must find.
TRUTH = (2.0, -1.0, 0.5, 3.0)
NOISE = 0.01
POINTS_PER_STEP = 96
LEARNING_RATE = 0.02


def main() -> None:
    """Train from the last checkpoint on, until the step given, or until somebody puts a file `enough` in the folder."""
    import numpy as np

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
            *gradient, loss, enough = sum_over_ranks(store, str(step), rank, world, np.array(mine))
            weights = weights - LEARNING_RATE * np.array(gradient)
            if rank == 0:
                save(folder, step, weights)
            print(f"step={step} loss={loss:.6f} rank={rank} world={world} round={round_number} pid={os.getpid()}")
    if rank == 0:
        error = np.abs(weights - TRUTH).max()
        drift = np.abs(weights - without_failures(step)).max()
        print(f"finished={step} error={error:.1e} drift={drift:.1e}")


def share(weights: Array, step: int, rank: int, world: int) -> Array:
    """Return this rank's share of the step's gradient and, as the last number, of its loss."""
    import numpy as np

    random = np.random.default_rng(step)
    inputs = random.normal(size=(POINTS_PER_STEP, len(TRUTH)))
    wanted = inputs @ TRUTH + NOISE * random.normal(size=POINTS_PER_STEP)
    mine = slice(rank, None, world)
    off = inputs[mine] @ weights - wanted[mine]
    return np.append(2 * off @ inputs[mine], off @ off) / POINTS_PER_STEP


def sum_over_ranks(store: Store, name: str, rank: int, world: int, values: Array) -> Array:
    """Add up the arrays of all ranks, through the store."""
    import numpy as np

    store.set(f"{name}/{rank}", values.tobytes())
    total = sum(map(np.frombuffer, store.multi_get([f"{name}/{other}" for other in range(world)])))
    # The last one to have read everything clears up; nobody waits for that.
    if store.add(f"{name}/read", 1) == world:
        for other in range(world):
            store.delete_key(f"{name}/{other}")
        store.delete_key(f"{name}/read")
    return np.asarray(total)


def load(folder: Path) -> tuple[int, Array]:
    """Return the last step that was saved and the weights after it; 0 and zeros where there is none."""
    import numpy as np

    path = folder / "checkpoint.json"
    if not path.exists():
        return 0, np.zeros(len(TRUTH))
    saved = json.loads(path.read_text())
    return saved["step"], np.array(saved["weights"])


def save(folder: Path, step: int, weights: Array) -> None:
    """Write the checkpoint in one move, so that whoever dies, and whenever, leaves a whole one."""
    draft = folder / f"checkpoint.{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    draft.write_text(json.dumps({"step": step, "weights": weights.tolist()}))
    draft.replace(folder / "checkpoint.json")


def without_failures(steps: int) -> Array:
    """Return the weights that one process, never disturbed, has after so many steps."""
    import numpy as np

    weights = np.zeros(len(TRUTH))
    for step in range(1, steps + 1):
        weights = weights - LEARNING_RATE * share(weights, step, 0, 1)[:-1]
    return weights


if __name__ == "__main__":
    main()
