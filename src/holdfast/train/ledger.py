"""The ledger: which samples of which epoch have been used. Pure.

A step takes the next `batch` samples of the epoch's order, whichever workers compute them. The position moves on only
when the step counts, and it is part of the state that a newcomer takes from the most advanced worker. So across any
number of kills, joins and resizes each sample of an epoch is used exactly once.

The batch is cut into micro-batches that do not depend on the number of workers; they are dealt out to the workers in
contiguous shares, as even as possible. A sum in the order of the micro-batches is then the same for any world
size, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.errors import UsageError
from holdfast.train.shuffle import Shuffle

#: How many samples there are if a program names none: every step then gets numbers that no other step has.
SAMPLES_UNNAMED = 2**40


@dataclass(frozen=True, slots=True)
class Portion:
    """The samples of one step, as positions in the order of an epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The smallest share of a step: its number within the step, and its samples."""

    number: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How samples become steps; equal on every worker.

    With `scale_batch` each worker takes `batch` samples, so that the batch of a step grows and shrinks with the number
    of workers; otherwise `batch` is the whole step's, for any number of workers.
    """

    samples: int
    batch: int
    micro_batch: int = 0
    epochs: int | None = 1
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    scale_batch: bool = False
    #: The training ends after exactly this many steps, if it has not ended before.
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise UsageError(f"{self.samples} samples in batches of {self.batch}: both must be at least 1")
        if self.micro_batch < 0 or (self.epochs is not None and self.epochs < 0):
            raise UsageError("neither a micro-batch nor the number of epochs can be negative")
        if self.drop_last and self.batch > self.samples:
            raise UsageError(f"with drop_last no step is left: {self.samples} samples, batches of {self.batch}")
        if self.steps is not None and self.steps < 0:
            raise UsageError(f"steps={self.steps}: the number of steps cannot be negative")

    @classmethod
    def of(
        cls,
        samples: int | None,
        batch: int | None,
        *,
        steps: int | None,
        epochs: int | Literal["auto"] | None,
        scale_batch: bool,
        **options: Any,
    ) -> Recipe:
        """Fill in defaults: one epoch, or as many as `steps` take; one sample per worker and step."""
        if (samples is None or batch is None) and steps is None:
            raise UsageError("say how long to train: give `samples` and `batch`, or `steps`")
        if epochs == "auto":
            epochs = 1 if steps is None else None
        if samples is None:
            samples, options["shuffle"] = SAMPLES_UNNAMED, False
        if batch is None:
            batch, scale_batch = 1, True
        return cls(samples, batch, epochs=epochs, scale_batch=scale_batch, steps=steps, **options)


class Ledger:
    """Which samples have been used, and which the next step will use."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        #: Everything before this position of this epoch has been used exactly once.
        self.epoch = 0
        self.position = 0
        #: Steps committed so far.
        self.step = 0
        self._order: tuple[int, Shuffle] | None = None

    def next(self, world_size: int = 1) -> Portion | None:
        """Return the samples of the next step, or None when all steps or epochs are over. They are not used yet."""
        recipe = self.recipe
        if recipe.steps is not None and self.step >= recipe.steps:
            return None
        if recipe.epochs is not None and self.epoch >= recipe.epochs:
            return None
        batch = recipe.batch * world_size if recipe.scale_batch else recipe.batch
        return Portion(self.epoch, self.position, min(self.position + batch, recipe.samples))

    def is_last(self, portion: Portion) -> bool:
        """Whether no step follows the one with these samples."""
        recipe = self.recipe
        if recipe.steps is not None and self.step + 1 >= recipe.steps:
            return True
        return recipe.epochs is not None and portion.epoch + 1 >= recipe.epochs and self._ends_epoch(portion)

    def commit(self, portion: Portion) -> None:
        """Count a step's samples as used."""
        assert (portion.epoch, portion.start) == (self.epoch, self.position), "a step was committed out of order"
        self.step += 1
        self.position = portion.stop
        if self._ends_epoch(portion):
            self.epoch, self.position = self.epoch + 1, 0

    def skip(self, steps: int) -> None:
        """Count the samples of the first steps as used: they were done before this run."""
        if self.recipe.scale_batch and steps:
            raise UsageError("which samples earlier steps had is not known with scale_batch: leave `start` out")
        for _ in range(steps):
            portion = self.next()
            if portion is None:
                return
            self.commit(portion)

    def end_epoch(self, epoch: int) -> None:
        """Leave out what is left of an epoch, if it is not over; to be called by all workers after the same step."""
        if self.epoch == epoch:
            self.epoch, self.position = epoch + 1, 0

    def _ends_epoch(self, portion: Portion) -> bool:
        left = self.recipe.samples - portion.stop
        return left == 0 or (self.recipe.drop_last and left < self.recipe.batch)

    def deal(self, portion: Portion, rank: int, world_size: int) -> list[MicroBatch]:
        """Return one worker's share of a step."""
        size = self._micro_batch_size(portion, world_size)
        count = self.micro_batches_of(portion, world_size)
        first, last = rank * count // world_size, (rank + 1) * count // world_size
        return [
            MicroBatch(
                number,
                self.samples(
                    portion.epoch, portion.start + number * size, min(portion.start + (number + 1) * size, portion.stop)
                ),
            )
            for number in range(first, last)
        ]

    def samples(self, epoch: int, start: int, stop: int) -> tuple[int, ...]:
        """Return the samples at positions of an epoch's order."""
        if not self.recipe.shuffle:
            return tuple(range(start, stop))
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, Shuffle(self.recipe.samples, self.recipe.seed, epoch))
        return self._order[1].take(start, stop)

    def micro_batches_of(self, portion: Portion, world_size: int) -> int:
        """Return into how many micro-batches a step is cut; they may be fewer than the workers."""
        return -(-len(portion) // self._micro_batch_size(portion, world_size))

    def _micro_batch_size(self, portion: Portion, world_size: int) -> int:
        """Without micro-batches of a fixed size each worker gets one share."""
        return self.recipe.micro_batch or max(-(-len(portion) // world_size), 1)

    def snapshot(self) -> dict[str, Any]:
        """Describe the used samples as plain data."""
        return {"epoch": self.epoch, "position": self.position, "step": self.step}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Move to the position of a snapshot."""
        epoch, position, step = int(data["epoch"]), int(data["position"]), int(data["step"])
        if not 0 <= position < self.recipe.samples:
            raise UsageError(f"position {position} does not fit {self.recipe.samples} samples: is it another data set?")
        self.epoch, self.position, self.step = epoch, position, step
