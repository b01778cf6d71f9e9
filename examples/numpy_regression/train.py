"""Linear regression with numpy that survives its workers; the sums go over Holdfast's own ring.

Run it with `holdfast launch --nproc-per-node 2 --max-restarts 3 examples/numpy_regression/train.py`.
"""

from __future__ import annotations

import argparse
import os
import signal

import numpy as np

import holdfast

SAMPLES, FEATURES = 4800, 16


def make_data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    wanted = inputs @ np.arange(FEATURES) + random.normal(scale=0.1, size=SAMPLES)
    return inputs, wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=96, help="samples of a step, over all workers together")
    parser.add_argument("--kill-at", type=int, help="let the last worker die in this step, once, to see what happens")
    options = parser.parse_args()

    inputs, wanted = make_data()
    state = holdfast.NumpyState(weights=np.zeros(FEATURES))
    with holdfast.elastic(state) as run:
        # Micro-batches are cut and summed in the same order however many workers there are: the same bits come out.
        for step in run.steps(SAMPLES, options.batch, micro_batch=8, epochs=options.epochs):
            with step:
                if step.number == options.kill_at and run.rank == run.world_size - 1 > 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                for micro in step.micro_batches:
                    chosen = list(micro.indices)
                    error = inputs[chosen] @ state.weights - wanted[chosen]
                    step.add(2 * error @ inputs[chosen])
                state.weights -= 0.05 * step.total() / step.samples
            if step.committed and run.rank == 0 and step.number % 100 == 0:
                print(f"step {step.number}: {run.world_size} workers, loss {loss(state.weights, inputs, wanted):.5f}")
        if run.rank == 0:
            print(f"done: loss {loss(state.weights, inputs, wanted):.5f}")


def loss(weights: np.ndarray, inputs: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean((inputs @ weights - wanted) ** 2))


if __name__ == "__main__":
    main()
