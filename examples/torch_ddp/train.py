"""A small convolutional network on generated images, with DistributedDataParallel, that survives its workers.

Run it with `holdfast launch --nproc-per-node 2 --max-restarts 3 examples/torch_ddp/train.py`.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
from torch import nn
from torch.utils.data import TensorDataset

import holdfast.torch

CLASSES, SIDE = 10, 16


def make_images(count: int, seed: int) -> TensorDataset:
    """Ten blurred patterns, each moved about and covered with noise: as hard as handwritten digits, and no download."""
    patterns = nn.functional.interpolate(
        torch.randn(CLASSES, 1, 5, 5, generator=torch.Generator().manual_seed(0)), size=(SIDE, SIDE), mode="bilinear"
    )
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=random)
    shifts = torch.randint(-2, 3, (count, 2), generator=random).tolist()
    images = torch.stack(
        [torch.roll(patterns[label], shift, (1, 2)) for label, shift in zip(labels.tolist(), shifts, strict=True)]
    )
    return TensorDataset(images + 0.7 * torch.randn(images.shape, generator=random), labels)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 4) ** 2, CLASSES),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128, help="images of a step, over all workers together")
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--kill-at", type=int, help="let the last worker die in this step, once, to see what happens")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    train, test = make_images(options.samples, seed=1), make_images(1000, seed=2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.7)

    # Everything that training changes goes into the state; a new worker takes it from the others.
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer, scheduler=scheduler)
    with holdfast.torch.elastic(state) as run:
        parallel = run.ddp(model)
        for step, (images, labels) in run.batches(train, options.batch, epochs=options.epochs):
            with step:
                if step.number == options.kill_at and run.rank == run.world_size - 1 > 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(parallel(images), labels)
                loss.backward()
                optimizer.step()
                scheduler.step()
            if step.committed and run.rank == 0 and step.number % 50 == 0:
                print(f"step {step.number}: {run.world_size} workers, loss {loss.item():.4f}", flush=True)
        if run.rank == 0:
            print(f"done: {100 * accuracy(model, test):.1f} % of new images are told right")


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, labels = data.tensors
    return (model(images).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
