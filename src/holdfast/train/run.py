"""The modern face of the in-process loop: a plain `for` over steps, each of them a transaction.

    state = holdfast.NumpyState(weights=np.zeros(4))
    with holdfast.elastic(state) as run:
        for step in run.steps(samples=len(data), batch=96, micro_batch=8):
            with step:
                for micro in step.micro_batches:
                    step.add(gradient(state.weights, data[list(micro.indices)]))
                state.weights -= 0.1 * step.total() / step.samples

A step that ended for every worker is counted; when a worker is lost on the way, the others are told at once, undo what
they have begun, regroup without leaving their process, and do the step again. Who comes new, or back, takes the state
of the most advanced worker first.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from holdfast.checkpoint.layout import pack, unpack
from holdfast.errors import NotRetryableError, RendezvousClosedError, RoundOverError, StopTrainingError, UsageError
from holdfast.facts import facts
from holdfast.timer.heartbeat import heartbeat
from holdfast.train.ledger import Ledger, MicroBatch, Portion, Recipe
from holdfast.train.membership import Membership, from_environ
from holdfast.train.party import Party, Votes
from holdfast.train.ring import Ring
from holdfast.train.shapes import arrays_of, blanks, describe, rebuild
from holdfast.train.state import State, TreeState
from holdfast.train.stragglers import Stragglers

if TYPE_CHECKING:
    import numpy as np

    from holdfast.checkpoint import Checkpointer, Notices
    from holdfast.torch.run import TorchRun
    from holdfast.torch.state import TorchState

    Array = np.ndarray[Any, Any]

#: How long after an error the news may take that a peer is gone, which then explains it.
NEWS_WAIT_S = 2.0
#: Votes are so far apart, or a step; and never more than so many steps.
VOTE_EVERY_S = 0.1
VOTE_STEPS_MAX = 10
#: How long a worker that leaves the loop waits for the others to do the same.
LEAVE_WAIT_S = 5.0
#: So many attempts at one step, without any worker getting further, and the error is the step's own.
ATTEMPTS_MAX = 100
#: So often a checkpoint may have vanished under a restore; after that it is not there to be read.
RESTORES_MAX = 3


class Run(Party):
    """One worker's part in a training; made by `elastic`.

    What a program may read at any time: `rank` and `world_size` of the present round, its number `round`, and `ring`,
    the round's collectives.
    """

    def __init__(
        self,
        state: State,
        membership: Membership,
        *,
        checkpoints: Checkpointer | None = None,
        notices: Notices | None = None,
    ) -> None:
        super().__init__(membership)
        self.state = state
        self.checkpoints = checkpoints
        self.notices = notices
        self.ledger: Ledger | None = None
        self._regroup: str | None = "first round"
        self._stop_reason: str | None = None
        self._attempts = 0
        self._restores = 0
        self._over = False
        #: Who keeps the others waiting, as far as this worker has seen.
        self.stragglers = Stragglers()
        #: What all said at the end of the last step.
        self.votes: Votes | None = None
        #: The step after which all hear of each other again, and the last one after which they did.
        self._vote_at = 0
        self._voted = -1

    @property
    def progress(self) -> int:
        """How many steps have been counted."""
        return self.ledger.step if self.ledger is not None else 0

    def stop(self, reason: str = "asked to stop") -> None:
        """Have the training end for everybody: after this step or, where steps are short, one of the next few.

        To end after a certain step, give `steps` to `Run.steps`.
        """
        self._stop_reason = reason

    # -- steps -------------------------------------------------------------------------------------------------------

    def steps(
        self,
        samples: int | None = None,
        batch: int | None = None,
        *,
        steps: int | None = None,
        micro_batch: int = 0,
        epochs: int | Literal["auto"] | None = "auto",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        scale_batch: bool = False,
    ) -> Iterator[Step]:
        """Yield the steps that are left, each to be done inside `with step:`, until all steps or epochs are over.

        `batch` samples make a step, however many workers share them; `micro_batch` cuts it into pieces that do not
        depend on the number of workers. With `scale_batch` each worker takes `batch` samples instead.

        With `steps` the training ends after exactly so many, counted from its beginning, whatever was lost and restored
        on the way; `epochs` is then unlimited unless given, and 1 otherwise (None: no end). A program that draws its
        data at random gives `steps` alone.
        """
        self.ledger = Ledger(
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
        while self._prepare():
            assert self.ledger is not None
            portion = self.ledger.next(self.world_size)
            if portion is None or self._over:
                break
            step = self.make_step(portion)
            yield step
            if not step.entered:
                raise UsageError("a step must be done inside `with step:`, so that it can be undone")

    def make_step(self, portion: Portion) -> Step:
        """Return the step for these samples; other kinds of runs have steps of their own."""
        return Step(self, portion)

    def _prepare(self) -> bool:
        """Make sure that there is a round in which all have the same state; says whether training goes on."""
        self._regroup = self._regroup or self.membership.broken
        while self._regroup is not None:
            try:
                self._form_round(self._regroup)
            except RoundOverError as over:
                self._regroup = str(over)
            except RendezvousClosedError as closed:
                self._over = True
                if not self.synced:
                    # Nothing was trained here: what follows the loop is for those who hold the result.
                    sentence = f"the replacement started after training had finished; exiting normally ({closed})"
                    facts.warn("too_late", sentence)
                    raise SystemExit(0) from None
                return False
        return True

    def _form_round(self, reason: str) -> None:
        began = time.monotonic()
        heartbeat()
        self.form_round()
        self.sync(self.state, reason, began)
        self._regroup = None

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def saved_progress(self) -> int:
        """How far the newest checkpoint is."""
        group = self.checkpoints.latest().group if self.checkpoints is not None else None
        return -1 if group is None else group.step

    def restore_saved(self, state: State) -> None:
        """Take the state and the ledger from the newest checkpoint."""
        restored = self.checkpoints.restore() if self.checkpoints is not None else None
        if restored is None:
            self._restores += 1
            if self._restores == RESTORES_MAX:
                raise NotRetryableError(
                    "there are checkpoints, but none can be read: see `holdfast checkpoints DIR --verify`; "
                    "to begin anew, move them away"
                )
            raise RoundOverError("the checkpoint that was there a moment ago cannot be read any more")
        self._restores = 0
        state.apply_snapshot(restored.tree["state"])
        self.take_position(restored.tree["position"])

    def save_checkpoint(self) -> bool:
        """Save the state as it is now, in the background; says whether it was taken."""
        if self.checkpoints is None:
            return False
        tree = self.state.tree() if isinstance(self.state, TreeState) else self.state.capture_snapshot()
        return bool(self.checkpoints.save(self.progress, {"state": tree, "position": self.position()}))

    def _after_step(self) -> None:
        """Save where that is due, and leave where that was announced."""
        checkpoints, notice = self.checkpoints, self.notices.pending() if self.notices is not None else None
        if checkpoints is not None and self.rank == 0 and checkpoints.should_save(self.progress):
            self.save_checkpoint()
        if notice is None:
            return
        if checkpoints is not None and self.save_checkpoint():
            checkpoints.wait(notice.seconds_left(time.time()))
        raise StopTrainingError(notice.reason)

    def position(self) -> Any:
        """The ledger goes wherever the state goes."""
        return self.ledger.snapshot() if self.ledger is not None else None

    def take_position(self, position: Any) -> None:
        """Go on where another worker stands."""
        if self.ledger is not None and position is not None:
            self.ledger.restore(position)

    # -- the end of a step -----------------------------------------------------------------------------------------

    def finish_step(self, step: Step, took_s: float) -> None:
        """Count a step that this worker has done, and hear how the others did."""
        assert self.ledger is not None
        self.ledger.commit(step.portion)
        self._attempts = 0
        try:
            votes = self._hear(step.number, took_s)
        except RoundOverError as over:
            # Done here all the same: the round's sums were complete. Whoever was not so far takes it from us.
            self._regroup = str(over)
            return
        if votes is not None:
            self._name_straggler(votes)
        self._after_step()
        if votes is not None and votes.stop:
            self._over = True
        elif votes is not None and votes.newcomers:
            self._regroup = "newcomers wait"

    def _hear(self, number: int, took_s: float) -> Votes | None:
        """Hear what all say of a step; where steps are short, only of every few, and of the last.

        A step is done without that, for the sums were complete. It is for newcomers and for the end, which can wait for
        a moment, while every vote makes all workers wait for the slowest once more. All know the same figures, so all
        find the same step for the next one. After the last step nobody leaves before all have done it: the end of the
        training would otherwise find some of them in the midst of it.
        """
        assert self.ledger is not None
        if number < self._vote_at and self.ledger.next() is not None:
            return None
        votes = self.votes = self.vote(number, stop=self._stop_reason is not None, seconds=took_s)
        step_s = max(*votes.seconds, VOTE_EVERY_S / VOTE_STEPS_MAX)
        self._vote_at = number + max(int(VOTE_EVERY_S / step_s), 1)
        self._voted = number
        return votes

    def on_round(self) -> None:
        """The first step of a round is heard of."""
        self._vote_at = 0

    def _name_straggler(self, votes: Votes) -> None:
        slow = self.stragglers.observe(votes.seconds)
        mine = self.stragglers.slow is not None and self.stragglers.slow.rank == self.rank
        self.membership.note(self.stragglers.slow.sentence if mine and self.stragglers.slow else "")
        if slow is not None and self.rank == 0:
            facts.warn("straggler", slow.sentence, ranks=[slow.rank], seconds=slow.seconds, median=slow.median)

    def undo_step(self, step: Step, error: BaseException) -> bool:
        """Undo a step that failed, if that was for a peer's sake; says whether it is to be done again."""
        if isinstance(error, StopTrainingError | NotRetryableError | KeyboardInterrupt | SystemExit | GeneratorExit):
            return False
        if not isinstance(error, RoundOverError) and not self._explained(error):
            return False
        self._attempts += 1
        if self._attempts > ATTEMPTS_MAX:
            return False
        self.clean = self.state.roll_back(step.mark)
        self._regroup = self.membership.broken or str(error)
        return True

    def _explained(self, error: BaseException) -> bool:
        """Whether an error is that of a collective whose round is over; the news of that may come a little later."""
        return isinstance(error, RuntimeError | OSError) and self.membership.wait_broken(NEWS_WAIT_S)

    # -- the whole -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if kind is None and self._ring is not None and self._voted < self.progress - 1:
            self._leave_together(self._ring)
        self.close_round()
        if self.checkpoints is not None:
            self.checkpoints.wait()
        if kind is None:
            if not self._over or self.membership.ended is None:
                self.membership.close_run()
            self.membership.leave("its training is done")
            return False
        self.membership.leave(f"it ended with {kind.__name__}: {error}")
        return kind is StopTrainingError

    def _leave_together(self, ring: Ring) -> None:
        """Wait until all have done the last step, as after a vote: who is a moment behind must not hear of the end."""
        ring.timeout_s = LEAVE_WAIT_S
        with contextlib.suppress(RoundOverError):
            ring.barrier()


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
        self.micro_batches: list[MicroBatch] = run.ledger.deal(portion, run.rank, run.world_size)
        self.mark: Any = None
        self.entered = False
        #: Whether the step counts, once `with step:` is left; where it was undone, it comes again.
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
        self.mark = self._run.state.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            busy_s = time.monotonic() - self._began if self._busy_s is None else self._busy_s
            self._run.finish_step(self, busy_s)
            self.committed = True
            return False
        return self._run.undo_step(self, error)

    def add(self, gradient: Array | Mapping[str, Array] | list[Array] | tuple[Array, ...]) -> None:
        """Bring the gradient of one micro-batch: an array, or a tree of dicts, lists and tuples of them."""
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
            # Some have no micro-batch in this step and must be told what gradients look like; the last rank has one.
            mine = pack(self._shape).to_bytes() if self._shape is not None else None
            self._shape = unpack(ring.broadcast(mine, ring.world_size - 1))
        if self._shape is None:
            raise UsageError("bring a gradient with step.add() before asking for step.total()")
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
    """Take part in a training that outlives its workers; use it as a context manager.

    Under `holdfast launch` everything needed is in the environment. With `checkpoints` rank 0 saves when they are due,
    and a training that begins goes on from the newest. With `notices` a worker that is told to leave does so after the
    step, having saved. Fewer than `min_workers` wait for others instead of going on. With a `TorchState` this is
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
    made = membership if membership is not None else from_environ(min_nodes=min_workers)
    return Run(state, made, checkpoints=checkpoints, notices=notices)


def is_torch_state(state: State) -> bool:
    """Whether a state is one of torch's; whoever has one has imported its module, and nobody else has to."""
    module = sys.modules.get("holdfast.torch.state")
    return module is not None and isinstance(state, module.TorchState)
