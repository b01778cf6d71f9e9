"""The coordinator of a training loop, under the names of the first torchelastic: how workers meet and agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.train.state import State


class WorkerStats(ABC):
    """Statistics of this worker in a step; `train_step` returns them with the state, or None."""

    @abstractmethod
    def get_progress_rate(self) -> float | None:
        """How fast this worker is, in any unit that all share; None if it cannot say."""


class SimpleWorkerStats(WorkerStats):
    """A progress rate and nothing else."""

    def __init__(self, progress_rate: float | None = None) -> None:
        self.progress_rate = progress_rate

    def get_progress_rate(self) -> float | None:
        """Return the rate that was given."""
        return self.progress_rate


class Coordinator(ABC):
    """What `train` needs to know of the others; the loop calls these on every worker in the same order."""

    @abstractmethod
    def rendezvous_barrier(self) -> tuple[Any, int, int]:
        """Block until a round is agreed; returns its store, this worker's rank and the world size."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all workers of the round have called this."""

    @abstractmethod
    def init_process_group(self) -> None:
        """Connect the workers of the round."""

    @abstractmethod
    def should_save_checkpoint(self) -> bool:
        """Return whether now is the time for a checkpoint; the same on all workers."""

    @abstractmethod
    def should_rendezvous(self, state: State) -> bool:
        """Say, between two steps, whether to regroup; the same on all workers."""

    @abstractmethod
    def should_stop_training(self) -> bool:
        """Return whether the training is over."""

    @abstractmethod
    def signal_training_done(self) -> None:
        """End the training for all workers."""

    @abstractmethod
    def monitor_progress(self, state: State, worker_stats: WorkerStats | None) -> None:
        """Compare this worker's progress with the others'."""

    @abstractmethod
    def report_progress(self, state: State) -> None:
        """Record a step that is done."""

    @abstractmethod
    def on_error(self, e: Exception) -> None:
        """Record an error after which the worker regroups."""

    def explains(self, error: Exception) -> bool:
        """Return whether an error that is no `RuntimeError` only comes from a round that is over."""
        del error
        return False

    def sync(self, state: State, world_size: int, rank: int) -> None:
        """Make the state equal on all workers."""
        state.sync(world_size, rank)
