"""Samples for torch: TorchElastic's samplers, and a data loader that follows the ledger of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from holdfast.errors import UsageError
from holdfast.train.ledger import Ledger

if TYPE_CHECKING:
    from holdfast.train.run import Step

T = TypeVar("T")


class ElasticDistributedSampler(DistributedSampler[Any]):
    """A `DistributedSampler` that begins at `start_index`: samples before it have been used already in this epoch.

    The rest of the data set is shuffled by the epoch's number and dealt out evenly; the last samples may come twice.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, start_index: int = 0
    ) -> None:
        super().__init__(dataset, num_replicas, rank)  # type: ignore[arg-type, unused-ignore]
        if not 0 <= start_index < len(dataset):
            raise ValueError(f"start_index {start_index} is outside of a data set of {len(dataset)} samples")
        self.start_index = start_index
        self.num_samples = -(-(len(dataset) - start_index) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self._size = len(dataset)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.epoch)
        left = self._size - self.start_index
        order = (torch.randperm(left, generator=generator) + self.start_index).tolist()
        return iter([order[place % left] for place in range(self.rank, self.total_size, self.num_replicas)])

    def __len__(self) -> int:
        return self.num_samples


class CyclingIterator(Iterator[T]):
    """Goes through `generator_fn(epoch)` for every epoch from `start_epoch` up to, but not including, `n`."""

    def __init__(self, n: int, generator_fn: Callable[[int], Iterable[T]], start_epoch: int = 0) -> None:
        self._n = n
        self._epoch = start_epoch
        self._generator_fn = generator_fn
        self._inner = iter(generator_fn(start_epoch))

    def __iter__(self) -> CyclingIterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            try:
                return next(self._inner)
            except StopIteration:
                if self._epoch + 1 >= self._n:
                    raise
            self._epoch += 1
            self._inner = iter(self._generator_fn(self._epoch))


class StepSampler(Sampler[list[int]]):
    """A batch sampler for torch's `DataLoader`: one worker's share of the next steps, if no worker joins or leaves.

    `aim` sets the position of a run; each pass begins there. A loader may read as far ahead as it likes: the run's own
    ledger decides which samples are used, and samples that were loaded for an earlier round are dropped.
    """

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._rank, self._world_size = 0, 1

    def aim(self, ledger: Ledger, rank: int, world_size: int) -> None:
        """Begin the next pass at the next step of this ledger."""
        self._ledger = _copy(ledger)
        self._rank, self._world_size = rank, world_size

    def __iter__(self) -> Iterator[list[int]]:
        if self._ledger is None:
            raise UsageError("this sampler works only in the loader of run.batches()")
        ledger = _copy(self._ledger)
        while (portion := ledger.next(self._world_size)) is not None:
            for micro in ledger.deal(portion, self._rank, self._world_size):
                yield list(micro.indices)
            ledger.commit(portion)


class StepLoader:
    """Loads the samples of one step after the other, ahead of time if the loader has workers of its own."""

    def __init__(self, dataset: Any, options: dict[str, Any]) -> None:
        if taken := {"batch_size", "batch_sampler", "sampler", "shuffle", "drop_last"} & options.keys():
            raise UsageError(
                f"{', '.join(sorted(taken))} of the DataLoader cannot be set: the run decides what is next"
            )
        if options.get("num_workers"):
            options = {"persistent_workers": True, **options}
        self._reads_ahead = bool(options.get("num_workers") or options.get("pin_memory"))
        self._dataset = dataset
        self._sampler = StepSampler()
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._sampler, **options)
        self._stream: Iterator[Any] = iter(())
        #: What the stream yields next, as a ledger of its own; None if there is no stream.
        self._ahead: Ledger | None = None
        self._place = (0, 1)

    def load(self, step: Step, ledger: Ledger, rank: int, world_size: int) -> Any:
        """Return this worker's share of a step, collated: one batch, or with micro-batches a list of them.

        It is None, or an empty list, if this worker has no sample in this step.
        """
        if self._reads_ahead:
            found = self._read_on(step, ledger, rank, world_size)
        else:
            found = [self._fetch(list(micro.indices)) for micro in step.micro_batches]
        if ledger.recipe.micro_batch:
            return found
        return found[0] if found else None

    def _fetch(self, indices: list[int]) -> Any:
        """Load the samples directly; going through the loader would only cost time."""
        collate: Any = self._loader.collate_fn
        if hasattr(self._dataset, "__getitems__"):
            return collate(self._dataset.__getitems__(indices))
        return collate([self._dataset[index] for index in indices])

    def _read_on(self, step: Step, ledger: Ledger, rank: int, world_size: int) -> list[Any]:
        if (
            self._ahead is None
            or self._place != (rank, world_size)
            or self._ahead.step != ledger.step
            or self._ahead.next(world_size) != step.portion
        ):
            # Samples that were loaded for this very step are loaded again: the step before may have changed them.
            self._sampler.aim(ledger, rank, world_size)
            self._stream, self._ahead, self._place = iter(self._loader), _copy(ledger), (rank, world_size)
        found = [next(self._stream) for _ in step.micro_batches]
        self._ahead.commit(step.portion)
        return found


def _copy(ledger: Ledger) -> Ledger:
    other = Ledger(ledger.recipe)
    other.epoch, other.position, other.step = ledger.epoch, ledger.position, ledger.step
    return other
