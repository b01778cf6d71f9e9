"""The first torchelastic's loop: `train(coordinator, train_step, state)`, in one process, through every failure.

What ends a step decides what follows:

- `StopIteration`: the data is used up; the training is over for all workers.
- `RuntimeError`, or what the coordinator explains by a round that is over: this worker or a peer failed; the step is
  rolled back, the workers regroup and continue.
- `StopException`: this worker leaves; the others continue.
- anything else: this worker ends with it; the others regroup and continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from holdfast.compat.torchelastic.checkpoint import CheckpointUtil
from holdfast.compat.torchelastic.coordinator import Coordinator, WorkerStats
from holdfast.errors import RendezvousClosedError, StopTrainingError
from holdfast.facts import facts
from holdfast.train.state import State

S = TypeVar("S", bound=State)

#: After this many failures the loop gives up.
MAX_FAILURES = 100

TrainStep = Callable[[S], tuple[S, WorkerStats | None]]


def train(coordinator: Coordinator, train_step: TrainStep[S], state: S) -> S:
    """Call `state, worker_stats = train_step(state)` until it raises `StopIteration`; returns the state."""

    def steps(begin: S) -> Iterator[tuple[S, WorkerStats | None]]:
        current = begin
        while True:
            try:
                current, stats = train_step(current)
            except StopIteration:
                return
            yield current, stats

    return run_train(coordinator, steps, state)


def run_train(coordinator: Coordinator, train_step_gen: Callable[[S], Iterator[Any]], state: S) -> S:
    """Run a generator that does one step for each value that it yields: `(state, worker_stats)`, or the stats alone.

    It is made again, from the state as it then is, after every regrouping.
    """
    loop = _Loop(coordinator, train_step_gen, state)
    while not coordinator.should_stop_training():
        if not loop.run_round():
            break
    return loop.state


class _Loop(Generic[S]):
    """One worker's way through the rounds."""

    def __init__(self, coordinator: Coordinator, steps: Callable[[S], Iterator[Any]], state: S) -> None:
        self.state = state
        self._coordinator = coordinator
        self._steps = steps
        self._failures = 0
        self._snapshot = state.capture_snapshot()
        self._checkpoints = CheckpointUtil(coordinator)

    def run_round(self) -> bool:
        """Take part in one round; return whether there may be another."""
        try:
            _, rank, world_size = self._coordinator.rendezvous_barrier()
            self._coordinator.init_process_group()
            self.state = self._checkpoints.load_checkpoint(self.state, rank)
            self._coordinator.sync(self.state, world_size, rank)
            self._checkpoints.set_checkpoint_loaded()
            return self._train(rank)
        except RendezvousClosedError:
            return False
        except StopTrainingError as stop:
            facts.warn("worker_stopped", f"this worker leaves the training: {stop}")
            return False
        except Exception as error:
            if not isinstance(error, RuntimeError) and not self._coordinator.explains(error):
                raise
            self._regroup_after(error)
            return True

    def _train(self, rank: int) -> bool:
        coordinator = self._coordinator
        self._snapshot = self.state.capture_snapshot()
        for done in self._steps(self.state):
            self.state, stats = done if isinstance(done, tuple) else (self.state, done)
            # From here on the step is done, whatever happens to the others.
            self._snapshot = self.state.capture_snapshot()
            coordinator.report_progress(self.state)
            coordinator.monitor_progress(self.state, stats)
            self._checkpoints.save_checkpoint(self.state, rank)
            if coordinator.should_rendezvous(self.state):
                return True
            if coordinator.should_stop_training():
                return False
        coordinator.signal_training_done()
        return False

    def _regroup_after(self, error: Exception) -> None:
        """Roll back, and let the next round begin; too many errors end the loop."""
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            sentence = f"Exceeded max number of recoverable failures: {self._failures}; the last was {error!r}"
            raise RuntimeError(sentence) from error
        self._coordinator.on_error(error)
        if self._snapshot is not None:
            self.state.apply_snapshot(self._snapshot)
