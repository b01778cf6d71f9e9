"""What workers train in a simulation, and what must hold of it after every event.

The state of a worker is modelled as the list of data that its steps have used. Two workers have the same state exactly
if they have used the same data in the same order, and a step is lost when no list holds it any more.
"""

from __future__ import annotations

import copy
from random import Random
from typing import TYPE_CHECKING

from holdfast.coordinator.messages import Place, RoundId
from holdfast.coordinator.run import RunMachine
from holdfast.sim.collectives import SimRound
from holdfast.sim.safety import Safety
from holdfast.sim.scenario import TrainingPlan
from holdfast.sim.violation import Violation
from holdfast.sim.world import World
from holdfast.train import events as t

if TYPE_CHECKING:
    from holdfast.sim.workers import SimWorker

#: The data of one step: from which sample to which.
Data = tuple[int, int]


class Model:
    """The state of one worker."""

    def __init__(self, plan: TrainingPlan) -> None:
        self._plan = plan
        self.used: list[Data] = []
        #: Whether the state is half-changed; the truth, whatever the trainer believes.
        self.torn = False
        #: The data of a step that has changed the state and does not count yet.
        self._changed: Data | None = None

    @property
    def step(self) -> int:
        """How many steps count, and the one that is under way once it has changed the state."""
        return len(self.used) + (self._changed is not None)

    def copy(self) -> Model:
        """Return another model with the same state."""
        other = copy.copy(self)
        other.used = list(self.used)
        return other

    def mark(self) -> None:
        """Begin a step."""
        self._changed = None

    def optimize(self, world_size: int) -> None:
        """Change the state with the sums of a step."""
        start = self.used[-1][1] if self.used else 0
        self._changed = (start, start + (world_size if self._plan.scale_batch else 1))

    def commit(self) -> None:
        """Count the step."""
        assert self._changed is not None
        self.used.append(self._changed)
        self._changed = None

    def roll_back(self, *, can_undo: bool) -> bool:
        """Undo the step; return whether the state is whole."""
        if self._changed is not None and not can_undo:
            self.torn = True
        self._changed = None
        return not self.torn

    def take(self, other: Model) -> None:
        """Become what another model is."""
        self.used, self.torn, self._changed = list(other.used), other.torn, None


class Disk:
    """Where checkpoints are kept; it outlives all processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.saved: list[Model] = []
        #: Whether the checkpoints can be read at present.
        self.readable = True

    def newest(self) -> int:
        """Return the step of the newest checkpoint, or -1."""
        return max((model.step for model in self.saved), default=-1)

    def read(self) -> Model | None:
        """Return the newest checkpoint, or None if it cannot be read."""
        if not self.readable or not self.saved:
            return None
        return max(self.saved, key=lambda model: model.step).copy()

    def save(self, model: Model, seconds: float, by: SimWorker) -> None:
        """Write a checkpoint, unless its writer dies before it is complete."""
        self._world.after(seconds, self._write, model, by)

    def _write(self, model: Model, by: SimWorker) -> None:
        if by.alive:
            if model.torn:
                raise Violation("no checkpoint is torn", f"{by.id} saved step {model.step}")
            self.saved.append(model)


class TrainingSafety(Safety):
    """Watches the workers of a training beside the rounds that they are in."""

    def __init__(self, workers: dict[str, SimWorker], size: int, world: World, rng: Random, disk: Disk) -> None:
        super().__init__(workers, size)
        self._workers = workers
        self._world = world
        self._rng = rng
        self._disk = disk
        self._rings: dict[RoundId, SimRound] = {}
        #: With what each round began, and the furthest that a member or a checkpoint was when it was sealed.
        self._began: dict[RoundId, list[Data]] = {}
        self._furthest: dict[RoundId, tuple[int, str]] = {}
        self.steps_done = 0
        #: Why the training was ended as failed.
        self.failed_for: str | None = None

    def ring(self, round_id: RoundId, world_size: int) -> SimRound:
        """Return what connects the workers of a round."""
        if round_id not in self._rings:
            self._rings[round_id] = SimRound(self._world, self._rng, world_size)
        return self._rings[round_id]

    def _on_new_round(self, run: RunMachine, round_id: RoundId, places: dict[str, Place]) -> None:
        super()._on_new_round(run, round_id, places)
        known = [(self._disk.newest(), "a checkpoint")] if self._disk.readable else []
        known += [
            (len(worker.model.used), worker.id)
            for name in run.nodes
            if not (worker := self._workers[name]).model.torn and not worker.model._changed
        ]
        self._furthest[round_id] = max(known, default=(0, ""))

    def ready(self, worker: SimWorker) -> None:
        """Look at a worker that may begin a step."""
        model, round_id = worker.model, worker.workers
        if model.torn:
            raise Violation("no worker trains on from a torn state", f"{worker.id} at step {model.step}")
        if round_id is None:
            raise Violation("a step needs a round", worker.id)
        if worker.trainer.step != model.step:
            raise Violation("a trainer knows its step", f"{worker.id}: {worker.trainer.step}, not {model.step}")
        if round_id in worker.rounds_begun:
            return
        worker.rounds_begun[round_id] = None
        began = self._began.setdefault(round_id, list(model.used))
        if began != model.used:
            raise Violation(
                "all members of a round begin with the same state",
                f"{worker.id} begins round {round_id} at step {model.step}, others at {len(began)}",
            )
        furthest, holder = self._furthest[round_id]
        if model.step < furthest and self._still_holds(holder, furthest):
            raise Violation(
                "no step is lost while a worker or a checkpoint has it",
                f"round {round_id} begins at step {model.step}, but {holder} has step {furthest}",
            )

    def _still_holds(self, holder: str, step: int) -> bool:
        """Whether what was known when the round was sealed is still there to be taken."""
        worker = self._workers.get(holder)
        if worker is None:
            return self._disk.readable and self._disk.newest() >= step
        return worker.alive and not worker.ended and not worker.model.torn and len(worker.model.used) >= step

    def committed(self, worker: SimWorker) -> None:
        """Look at a step as it is counted."""
        number = worker.model.step - 1
        self.steps_done = max(self.steps_done, number + 1)
        mine = worker.model.used
        for other in self._workers.values():
            theirs = other.model.used
            together = other.alive and not other.ended and other.workers == worker.workers
            if together and len(theirs) > number and theirs[number] != mine[number]:
                raise Violation(
                    "a step that counts is not done again with other data",
                    f"step {number} used {mine[number]} on {worker.id} and {theirs[number]} on {other.id}",
                )

    def _check_close(self, run: RunMachine) -> None:
        """A training that failed was ended by a worker; see `closes`."""

    def _check_lost(self, worker: SimWorker) -> None:
        together = [each for each in self._workers.values() if each.alive and each.workers == worker.workers]
        furthest = max(len(each.model.used) for each in together)
        holders = [each.id for each in together if not each.model.torn and len(each.model.used) == furthest]
        if holders or (self._disk.readable and self._disk.saved):
            raise Violation(
                "a training fails only when its state is lost",
                f"step {furthest} is with {holders}; the newest checkpoint is of step {self._disk.newest()}",
            )

    def error_stands(self, worker: SimWorker, *, own: bool) -> None:
        """Look at a worker that takes an error for its own."""
        if not own:
            raise Violation(
                "no error is taken for the worker's own that is not", f"{worker.id} ends at step {worker.model.step}"
            )

    def closes(self, worker: SimWorker, close: t.CloseRun) -> None:
        """Look at a worker that ends the training for all."""
        if close.failed:
            # Others of the round come to the same end a moment later, when the first may be gone already.
            if close.reason != self.failed_for:
                self._check_lost(worker)
            self.failed_for = close.reason
        elif worker.model.step < worker.training.steps:
            raise Violation("a training ends after its last step", f"{worker.id} ends it at step {worker.model.step}")
