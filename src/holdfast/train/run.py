"""Training in process: a plain `for` over steps, each of them a transaction.

    state = holdfast.NumpyState(weights=np.zeros(4))
    with holdfast.elastic(state) as run:
        for step in run.steps(samples=len(data), batch=96, micro_batch=8):
            with step:
                for micro in step.micro_batches:
                    step.add(gradient(state.weights, data[list(micro.indices)]))
                state.weights -= 0.1 * step.total() / step.samples

When a worker is lost in a step, the others are told at once, undo the step, regroup without leaving their
process, and do the step again. A worker that is new, or comes back, first takes the state of the most advanced worker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from holdfast.checkpoint.keys import ALONE
from holdfast.checkpoint.layout import pack, unpack
from holdfast.errors import StopTrainingError, UsageError
from holdfast.timer.heartbeat import heartbeat
from holdfast.train.given import Backend, Decider, Rounds
from holdfast.train.ledger import Ledger, MicroBatch, Portion, Recipe
from holdfast.train.membership import Membership, from_environ
from holdfast.train.ring import Ring
from holdfast.train.shapes import arrays_of, blanks, describe, rebuild
from holdfast.train.state import State
from holdfast.train.stragglers import Stragglers
from holdfast.train.trainer import Trainer

if TYPE_CHECKING:
    import numpy as np

    from holdfast.checkpoint import Checkpointer, Notices
    from holdfast.torch.run import TorchRun
    from holdfast.torch.state import TorchState
    from holdfast.train.machine import TrainerMachine

    Array = np.ndarray[Any, Any]


class Run:
    """One worker's part in a training; made by `elastic`.

    A program may read at any time: `rank` and `world_size` of the present round, its number `round`, and `ring`,
    the round's collectives.
    """

    def __init__(
        self,
        state: State,
        membership: Rounds,
        *,
        checkpoints: Checkpointer | None = None,
        notices: Notices | None = None,
        backend: Backend | None = None,
        decider: Callable[[TrainerMachine], Decider] | None = None,
        shard: tuple[int, int] = ALONE,
    ) -> None:
        self.state = state
        self.membership = membership
        self.checkpoints = checkpoints
        self.ledger: Ledger | None = None
        self._trainer = Trainer(
            membership,
            state,
            backend=backend,
            checkpoints=checkpoints,
            notices=notices,
            decider=decider,
            shard=shard,
        )

    # -- what programs read --------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's rank in the present round."""
        return self._trainer.rank

    @property
    def world_size(self) -> int:
        """How many workers the present round has."""
        return self._trainer.world_size

    @property
    def share(self) -> tuple[int, int]:
        """Which share of every step's samples this worker has, and how many shares there are."""
        return self.rank, self.world_size

    @property
    def round(self) -> int:
        """The number of the present round."""
        return self._trainer.view.number

    @property
    def ring(self) -> Ring:
        """The collectives of the present round."""
        return self._trainer.ring

    @property
    def progress(self) -> int:
        """How many steps have been counted."""
        return self.ledger.step if self.ledger is not None else 0

    @property
    def stragglers(self) -> Stragglers:
        """Which worker keeps the others waiting, as far as this one has seen."""
        return self._trainer.machine.stragglers

    def stop(self, reason: str = "asked to stop") -> None:
        """End the training for all workers: after this step or, if steps are short, after one of the next few.

        The event log has the reason. To end after a certain step, give `steps` to `Run.steps`.
        """
        self._trainer.stop(reason)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def steps(
        self,
        samples: int | None = None,
        batch: int | None = None,
        *,
        steps: int | None = None,
        start: int = 0,
        micro_batch: int = 0,
        epochs: int | Literal["auto"] | None = "auto",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        scale_batch: bool = False,
    ) -> Iterator[Step]:
        """Yield the steps that are left, each to be done inside `with step:`, until all steps or epochs are over.

        A step has `batch` samples, for any number of workers; `micro_batch` cuts it into pieces that do not
        depend on the number of workers. With `scale_batch` each worker takes `batch` samples instead.

        With `steps` it ends after exactly that many, counted from its beginning, whatever was lost or restored
        on the way; `epochs` is then unlimited unless given, and 1 otherwise (None: no end). A program that draws its
        data at random gives `steps` alone. With `start` so many steps were done before, by a program that restored
        its state itself; they count, and their samples are not used again.
        """
        ledger = self.ledger = self._trainer.position = Ledger(
            Recipe.of(
                samples,
                batch,
                steps=steps,
                micro_batch=micro_batch,
                epochs=epochs,
                shuffle=shuffle,
                seed=seed,
                drop_last=drop_last,
                scale_batch=scale_batch,
            )
        )
        ledger.skip(start)
        while self._trainer.next_step():
            portion = ledger.next(self.share[1])
            if portion is None:
                break
            step = self.make_step(portion)
            yield step
            if not step.entered:
                raise UsageError("a step must be done inside `with step:`, so that it can be undone")

    def make_step(self, portion: Portion) -> Step:
        """Return the step for these samples; other kinds of runs have steps of their own."""
        return Step(self, portion)

    def save_checkpoint(self) -> bool:
        """Save the state as it is now, in the background; return whether the save was accepted."""
        return self._trainer.save()

    # -- the whole -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if kind is None:
            self._trainer.leave("its training is done", failed=False)
            return False
        self._trainer.leave(f"it ended with {kind.__name__}: {error}", failed=True)
        return kind is StopTrainingError


class Step:
    """One step of all workers together: everything inside `with step:` happens for every worker, or for none."""

    def __init__(self, run: Run, portion: Portion) -> None:
        assert run.ledger is not None
        self._run = run
        self.portion = portion
        #: Counts from 0 and is the same on every worker.
        self.number = run.ledger.step
        self.epoch = portion.epoch
        #: How many samples the whole step has, over all workers.
        self.samples = len(portion)
        #: This worker's share.
        self.micro_batches: list[MicroBatch] = run.ledger.deal(portion, *run.share)
        self.entered = False
        #: Whether the step counts, once `with step:` is left; if it was undone, it comes again.
        self.committed = False
        self._parts: list[list[Array]] = []
        #: What a gradient looks like; see `shapes`.
        self._shape: dict[str, Any] | None = None
        self._began = 0.0
        self._busy_s: float | None = None

    @property
    def indices(self) -> list[int]:
        """The samples of this worker's share, in one list."""
        return [index for micro in self.micro_batches for index in micro.indices]

    def __enter__(self) -> Step:
        self.entered = True
        heartbeat(self.number)
        self._began = time.monotonic()
        self._run._trainer.begin_step(self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        trainer, ledger = self._run._trainer, self._run.ledger
        assert ledger is not None
        if error is not None:
            return trainer.fail_step(error)
        busy_s = time.monotonic() - self._began if self._busy_s is None else self._busy_s
        trainer.end_step(busy_s, last=ledger.is_last(self.portion))
        return False

    def _count(self) -> None:
        """Record that the step counts."""
        assert self._run.ledger is not None
        self._run.ledger.commit(self.portion)
        self.committed = True

    def add(self, gradient: Array | Mapping[str, Array] | list[Array] | tuple[Array, ...]) -> None:
        """Add the gradient of one micro-batch: an array, or a tree of dicts, lists and tuples of them."""
        import numpy as np

        if self._shape is None:
            self._shape = describe(gradient)
        self._parts.append([np.array(array, copy=True) for array in arrays_of(gradient)])

    def total(self) -> Any:
        """Return the sum over all micro-batches of all workers, in their order: the same bits for any world size."""
        ring, ledger = self._run.ring, self._run.ledger
        assert ledger is not None
        self._busy_s = time.monotonic() - self._began
        if ledger.micro_batches_of(self.portion, ring.world_size) < ring.world_size:
            # Some workers have no micro-batch in this step and need the shape of the gradients; the last rank has one.
            mine = pack(self._shape).to_bytes() if self._shape is not None else None
            self._shape = unpack(ring.broadcast(mine, ring.world_size - 1))
        if self._shape is None:
            raise UsageError("call step.add() with a gradient before step.total()")
        sums = [
            ring.all_reduce_parts([part[index] for part in self._parts], like=like)
            for index, like in enumerate(blanks(self._shape))
        ]
        return rebuild(self._shape, sums)


@overload
def elastic(
    state: TorchState,
    *,
    membership: Membership | None = None,
    checkpoints: Checkpointer | None = None,
    notices: Notices | None = None,
    min_workers: int = 1,
    **torch_options: Any,
) -> TorchRun: ...


@overload
def elastic(
    state: State,
    *,
    membership: Membership | None = None,
    checkpoints: Checkpointer | None = None,
    notices: Notices | None = None,
    min_workers: int = 1,
) -> Run: ...


def elastic(
    state: State,
    *,
    membership: Membership | None = None,
    checkpoints: Checkpointer | None = None,
    notices: Notices | None = None,
    min_workers: int = 1,
    **torch_options: Any,
) -> Run:
    """Take part in a training that survives the loss of workers; use it as a context manager.

    Under `holdfast launch` everything needed is in the environment. With `checkpoints` rank 0 saves when they are due,
    and a new training continues from the newest. With `notices` a worker that is told to leave does so after the
    step, having saved. Fewer than `min_workers` wait for others instead of continuing. With a `TorchState` this is
    `holdfast.torch.elastic`, and takes its `backend` and `timeout`.
    """
    if is_torch_state(state):
        from holdfast.torch.run import elastic as elastic_torch

        return elastic_torch(
            state,
            membership=membership,
            checkpoints=checkpoints,
            notices=notices,
            min_workers=min_workers,
            **torch_options,
        )
    if torch_options:
        raise UsageError(f"{', '.join(torch_options)}: only for a training with a TorchState")
    made = membership if membership is not None else from_environ(min_workers=min_workers)
    return Run(state, made, checkpoints=checkpoints, notices=notices)


def is_torch_state(state: State) -> bool:
    """Whether this is a `TorchState`; a program that has one has imported its module, and others need not."""
    module = sys.modules.get("holdfast.torch.state")
    return module is not None and isinstance(state, module.TorchState)
