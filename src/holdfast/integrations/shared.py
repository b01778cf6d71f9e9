"""What all frameworks need: a run whose process group they do not see, and steps from their data loader's batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from holdfast.errors import UsageError
from holdfast.torch.groups import RoundGroups
from holdfast.torch.replicas import ColumnGroup
from holdfast.torch.run import TorchRun
from holdfast.train.membership import from_environ

if TYPE_CHECKING:
    from holdfast.checkpoint import Checkpointer, Notices
    from holdfast.torch.run import TorchStep
    from holdfast.torch.state import TorchState

#: Options of a data loader that a run's own loader takes over.
LOADER_OPTIONS = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "prefetch_factor",
    "worker_init_fn",
    "multiprocessing_context",
)


def join(
    state: TorchState,
    *,
    backend: str,
    timeout: timedelta | float,
    min_workers: int,
    checkpoints: Checkpointer | None,
    notices: Notices | None,
) -> TorchRun:
    """Take part in a training whose process groups torch does not know.

    A framework that finds a default group uses it at any time, for metrics or barriers, and so outside of steps, where
    the loss of a worker could not be undone.
    """
    if backend == "auto":
        modules = [part for part in vars(state).values() if isinstance(part, torch.nn.Module)]
        on_gpu = any(parameter.is_cuda for module in modules for parameter in module.parameters())
        backend = "nccl" if on_gpu else "gloo"
    groups = None if backend == "ring" else RoundGroups(backend, timeout, ColumnGroup(0))
    rounds = from_environ(min_workers=min_workers)
    return TorchRun(state, rounds, groups, checkpoints=checkpoints, notices=notices)


def launched_workers() -> int:
    """Return how many workers were launched."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Plan:
    """How the batches of a framework's data loader become steps of all workers.

    A step has `batches` of them, each one a micro-batch. They are dealt out to the workers that are left, so it does
    not matter for the result how many these are, except for rounding.
    """

    def __init__(self, loader: DataLoader[Any], batches: int, *, seed: int) -> None:
        _check(loader)
        self.loader = loader
        self.dataset: Any = loader.dataset
        # Accelerate's loaders know it only there.
        batches_of: Any = loader.batch_sampler
        self.micro_batch, self.drop_last = int(batches_of.batch_size), bool(batches_of.drop_last)
        self.batch = self.micro_batch * batches
        self._seed = seed

    def __len__(self) -> int:
        """How many steps an epoch has."""
        return self.samples // self.batch if self.drop_last else -(-self.samples // self.batch)

    @property
    def samples(self) -> int:
        """How many samples an epoch has."""
        return len(self.dataset)

    def steps(
        self, run: TorchRun, *, steps: int | None, epochs: int | None, start: int
    ) -> Iterator[tuple[TorchStep, list[Any]]]:
        """Yield every step that is left with this worker's micro-batches."""
        loader: Any = self.loader
        return run.batches(
            self.dataset,
            self.batch,
            micro_batch=self.micro_batch,
            steps=steps,
            epochs=epochs,
            start=start,
            shuffle=isinstance(sampler_of(loader), RandomSampler),
            seed=self._seed,
            drop_last=self.drop_last,
            **{name: getattr(loader, name) for name in LOADER_OPTIONS},
        )

    def stand_in(self, run: TorchRun, step: TorchStep) -> Any:
        """Return a batch for a worker that has none in this step; what comes of it does not count."""
        assert run.ledger is not None
        portion = step.portion
        stop = min(portion.start + self.micro_batch, portion.stop)
        collate: Any = self.loader.collate_fn
        return collate([self.dataset[index] for index in run.ledger.samples(portion.epoch, portion.start, stop)])


def part_of_step(run: TorchRun, step: TorchStep) -> float:
    """Return which part of a step's micro-batches this worker has: what its mean counts."""
    assert run.ledger is not None
    return len(step.micro_batches) / run.ledger.micro_batches_of(step.portion, run.world_size)


def sampler_of(loader: Any) -> Any:
    """Return the sampler behind a loader; Accelerate may have put its own around it."""
    batches = getattr(loader, "batch_sampler", None)
    return getattr(batches, "sampler", loader.sampler) if batches is not None else loader.sampler


def _check(loader: Any) -> None:
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise UsageError("the training data needs a length: Holdfast records which samples have been used")
    if not hasattr(loader.batch_sampler, "batch_size") or not hasattr(loader.batch_sampler, "drop_last"):
        raise UsageError("the training data needs a batch_size: Holdfast deals the batches out by itself")
    sampler = sampler_of(loader)
    if not isinstance(sampler, RandomSampler | SequentialSampler):
        raise UsageError(
            f"Holdfast deals samples out by itself, at random or in order, and cannot follow {type(sampler).__name__}: "
            "leave the sampler out, and set shuffle instead"
        )
