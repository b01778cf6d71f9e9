"""What the campaign trains: a small regression whose end says whether every sample was used exactly once.

Beside the gradient each micro-batch brings a one for every sample in it. The sums are part of the state and go through
the same transaction, so a step that is lost, or counted twice, shows in them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from holdfast.chaos.inject import FOLDER_VARIABLE, at
from holdfast.chaos.schedule import Moment
from holdfast.train.membership import RoundView
from holdfast.train.run import Run, elastic
from holdfast.train.state import NumpyState

SAMPLES, BATCH, MICRO_BATCH, FEATURES = 480, 40, 5, 16
LEARNING_RATE = 0.05


class Watched(NumpyState):
    """A state whose sync is one of the moments at which something may happen."""

    def sync(self, world_size: int, rank: int) -> None:
        """Take the state of the most advanced worker, if nothing happens on the way."""
        at(Moment.SYNC, STEP[0], rank)
        super().sync(world_size, rank)


#: The step that was begun last.
STEP = [0]


def watch_rendezvous(run: Run, rank: int) -> None:
    """Make every ask for a round one of the moments at which something may happen."""
    join = run.membership.join

    def watched(cause: str | None = None) -> RoundView:
        at(Moment.RENDEZVOUS, STEP[0], rank)
        return join(cause)

    run.membership.join = watched  # type: ignore[method-assign]


def main() -> None:
    """Train until the steps of the schedule are done, and leave the result in the folder."""
    import numpy as np

    folder = Path(os.environ[FOLDER_VARIABLE])
    steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
    random = np.random.default_rng(1)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    wanted = inputs @ random.normal(size=FEATURES) + 0.1 * random.normal(size=SAMPLES)
    state = Watched(weights=np.zeros(FEATURES), momentum=np.zeros(FEATURES), used=np.zeros(SAMPLES))
    rank = int(os.environ["RANK"])
    epochs = -(-steps * BATCH // SAMPLES)
    with elastic(state) as run:
        watch_rendezvous(run, rank)
        for step in run.steps(SAMPLES, BATCH, micro_batch=MICRO_BATCH, epochs=epochs):
            with step:
                STEP[0] = step.number
                at(Moment.FORWARD, step.number, run.rank)
                for micro in step.micro_batches:
                    chosen = list(micro.indices)
                    off = inputs[chosen] @ state.weights - wanted[chosen]
                    ones = np.zeros(SAMPLES)
                    ones[chosen] = 1.0
                    step.add([2 * off @ inputs[chosen] / step.samples, ones])
                time.sleep(pause_s)
                at(Moment.REDUCE, step.number, run.rank)
                gradient, ones = step.total()
                state.momentum = 0.9 * state.momentum + gradient
                at(Moment.OPTIMIZER, step.number, run.rank)
                state.weights = state.weights - LEARNING_RATE * state.momentum
                state.used = state.used + ones
            at(Moment.CHECKPOINT, step.number, run.rank)
        result = {
            "weights": state.weights.tobytes().hex(),
            "momentum": state.momentum.tobytes().hex(),
            "used": [int(count) for count in state.used],
            "steps": run.progress,
            "world_size": run.world_size,
            "rank": run.rank,
        }
        (folder / f"result-{os.getpid()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
