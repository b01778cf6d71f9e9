"""A small network in JAX that survives its workers; gradients of micro-batches are summed over Holdfast's own ring.

Run it with `holdfast launch --nproc-per-node 2 --max-restarts 3 examples/jax/train.py`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import numpy as np

import holdfast

SAMPLES, FEATURES, WIDTH = 2400, 8, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=96, help="samples of a step, over all workers together")
    parser.add_argument("--kill-at", type=int, help="let the last worker die in this step, once, to see what happens")
    options = parser.parse_args()
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        if os.environ.get("RANK") == "0":
            print("skipped: this example needs JAX, which is not installed: pip install jax", file=sys.stderr)
        sys.exit(0)

    random = np.random.default_rng(0)
    inputs = random.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    wanted = np.sin(inputs.sum(1)).astype(np.float32)
    state = holdfast.PytreeState(
        parameters={
            "in": jnp.asarray(random.normal(size=(FEATURES, WIDTH)).astype(np.float32) / 3),
            "out": jnp.asarray(random.normal(size=WIDTH).astype(np.float32) / 6),
        }
    )

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        return jnp.sum((jnp.tanh(x @ parameters["in"]) @ parameters["out"] - y) ** 2)

    gradient = jax.jit(jax.value_and_grad(loss))
    with holdfast.elastic(state) as run:
        for step in run.steps(SAMPLES, options.batch, micro_batch=8, epochs=options.epochs):
            with step:
                if step.number == options.kill_at and run.rank == run.world_size - 1 > 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                for micro in step.micro_batches:
                    chosen = list(micro.indices)
                    value, found = gradient(state.parameters, inputs[chosen], wanted[chosen])
                    step.add({**{name: np.asarray(part) for name, part in found.items()}, "loss": np.asarray(value)})
                total = step.total()
                state.parameters = {
                    name: part - 0.05 * total[name] / step.samples for name, part in state.parameters.items()
                }
            if step.committed and run.rank == 0 and step.number % 50 == 0:
                print(
                    f"step {step.number}: {run.world_size} workers, loss {total['loss'] / step.samples:.4f}", flush=True
                )
        if run.rank == 0:
            print(f"done: loss {float(loss(state.parameters, inputs, wanted)) / SAMPLES:.4f}")


if __name__ == "__main__":
    main()
