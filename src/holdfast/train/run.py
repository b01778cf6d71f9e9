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

import json
import struct
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.layout import pack, unpack
from holdfast.errors import InternalError, RendezvousClosedError, UsageError
from holdfast.facts import INFO, Fact, facts
from holdfast.train.errors import NonRetryableException, RoundOver, StopException
from holdfast.train.ledger import Ledger, MicroBatch, Portion, Recipe
from holdfast.train.membership import Circle, Membership, from_environ
from holdfast.train.ring import Ring
from holdfast.train.state import State

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: What a worker says at the end of a step: its number, whether newcomers wait, whether to stop, how long it took.
_VOTE = struct.Struct("<QBBd")
#: How long after an error the news may take that a peer is gone, which then explains it.
NEWS_WAIT_S = 2.0
#: So many attempts at one step, without any worker getting further, and the error is the step's own.
ATTEMPTS_MAX = 100


class Run:
    """One worker's part in a training; made by `elastic`.

    What a program may read at any time: `rank` and `world_size` of the present round, its number `round`, and `ring`,
    the round's collectives.
    """

    def __init__(self, state: State, membership: Membership) -> None:
        self.state = state
        self.membership = membership
        self.ledger: Ledger | None = None
        self._circle: Circle | None = None
        self._ring: Ring | None = None
        #: Whether the state has ever been made equal to the others'.
        self._synced = False
        #: Whether the state is whole: not left half-changed by a step that failed.
        self._clean = True
        self._regroup: str | None = "first round"
        self._stop_reason: str | None = None
        self._attempts = 0
        self._over = False
        self._step_times: list[float] = []

    # -- what programs read ----------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's rank in the present round."""
        return self.circle.rank

    @property
    def world_size(self) -> int:
        """How many workers the present round has."""
        return self.circle.world_size

    @property
    def round(self) -> int:
        """The number of the present round."""
        return self.circle.number

    @property
    def circle(self) -> Circle:
        """The present round."""
        if self._circle is None:
            raise UsageError("there is no round yet: it begins with the first step")
        return self._circle

    @property
    def ring(self) -> Ring:
        """The collectives of the present round."""
        if self._ring is None:
            raise UsageError("there is no round yet: it begins with the first step")
        return self._ring

    @property
    def progress(self) -> int:
        """How many steps have been counted."""
        return self.ledger.step if self.ledger is not None else 0

    def stop(self, reason: str = "asked to stop") -> None:
        """Have the training end for everybody after this step."""
        self._stop_reason = reason

    # -- steps -------------------------------------------------------------------------------------------------------

    def steps(
        self,
        samples: int,
        batch: int,
        *,
        micro_batch: int = 0,
        epochs: int | None = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        scale_batch: bool = False,
    ) -> Iterator[Step]:
        """Yield the steps that are left, each to be done inside `with step:`, until all epochs are over.

        `batch` samples make a step, however many workers share them; `micro_batch` cuts it into pieces that do not
        depend on the number of workers. With `scale_batch` each worker takes `batch` samples instead.
        """
        recipe = Recipe(samples, batch, micro_batch, epochs, shuffle, seed, drop_last, scale_batch)
        self.ledger = Ledger(recipe)
        while self._prepare():
            assert self.ledger is not None
            portion = self.ledger.next(self.world_size)
            if portion is None or self._over:
                break
            step = Step(self, portion)
            yield step
            if not step.entered:
                raise UsageError("a step must be done inside `with step:`, so that it can be undone")

    def _prepare(self) -> bool:
        """Make sure that there is a round in which all have the same state; says whether training goes on."""
        while self._regroup is not None:
            try:
                self._form_round(self._regroup)
            except RoundOver as over:
                self._regroup = str(over)
            except RendezvousClosedError:
                self._over = True
                return False
        return True

    def _form_round(self, reason: str) -> None:
        began = time.monotonic()
        self.close_round()
        self._circle = self.membership.join()
        self._ring = Ring.open(
            self._circle.rank,
            self._circle.world_size,
            self._circle.store,
            self._circle.address,
            until=lambda ring: self.membership.on_break(ring.abort),
        )
        self.on_round()
        _running.append(self)
        try:
            self.state.sync(self._circle.world_size, self._circle.rank)
        finally:
            _running.pop()
        self._regroup = None
        took_ms = (time.monotonic() - began) * 1000
        facts.publish(
            Fact(
                "regrouped",
                f"round {self.round}: rank {self.rank} of {self.world_size} after {took_ms:.0f} ms ({reason})",
                {"round": self.round, "rank": self.rank, "world_size": self.world_size, "duration_ms": took_ms},
                INFO,
            )
        )

    def on_round(self) -> None:
        """Called when a round stands, before the state is synced; process groups are formed here."""

    def close_round(self) -> None:
        """Let go of what belongs to the last round."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    # -- the same state for all ----------------------------------------------------------------------------------

    def sync_state(self, state: State) -> None:
        """Take the state of the most advanced worker, wherever this one's is not the same."""
        began = time.monotonic()
        mine = {"progress": self.progress, "clean": self._clean, "synced": self._synced}
        all_ = [json.loads(text) for text in self.ring.all_gather(json.dumps(mine).encode())]
        source = choose_source(all_)
        behind = [rank for rank, one in enumerate(all_) if rank != source and _needs(one, all_[source])]
        moved = 0
        if behind:
            packed = self._pack(state) if self.rank == source else None
            data = self.ring.broadcast(packed, source)
            moved = len(data)
            if self.rank in behind:
                self._unpack(state, data)
        self._synced = self._clean = True
        if moved:
            took_ms = (time.monotonic() - began) * 1000
            facts.publish(
                Fact(
                    "state_synced",
                    f"rank {source} gave its state ({moved} bytes, step {all_[source]['progress']}) to "
                    f"{len(behind)} of {self.world_size} workers in {took_ms:.0f} ms",
                    {"duration_ms": took_ms, "bytes": moved, "source": source, "to": behind},
                )
            )

    def _pack(self, state: State) -> bytes:
        snapshot = state.capture_snapshot()
        return pack({"state": snapshot, "ledger": self.ledger.snapshot() if self.ledger else None}).to_bytes()

    def _unpack(self, state: State, data: bytes | memoryview) -> None:
        tree = unpack(data, verify=False)
        if tree["state"] is not None:
            state.apply_snapshot(tree["state"])
        if self.ledger is not None and tree["ledger"] is not None:
            self.ledger.restore(tree["ledger"])

    # -- the end of a step -----------------------------------------------------------------------------------------

    def finish_step(self, step: Step, took_s: float) -> None:
        """Count a step that this worker has done, and hear how the others did."""
        assert self.ledger is not None
        self.ledger.commit(step.portion)
        self._attempts = 0
        vote = _VOTE.pack(step.number, self.membership.newcomers > 0, self._stop_reason is not None, took_s)
        try:
            votes = [_VOTE.unpack(text) for text in self.ring.all_gather(vote)]
        except RoundOver as over:
            # Done here all the same: the round's sums were complete. Whoever was not so far takes it from us.
            self._regroup = str(over)
            return
        if any(number != step.number for number, *_ in votes):
            raise InternalError(f"the workers are at different steps: {[number for number, *_ in votes]}")
        self._step_times = [seconds for *_, seconds in votes]
        if any(stop for _, _, stop, _ in votes):
            self._over = True
        elif any(newcomers for _, newcomers, _, _ in votes):
            self._regroup = "newcomers wait"

    def undo_step(self, step: Step, error: BaseException) -> bool:
        """Undo a step that failed, if that was for a peer's sake; says whether it is to be done again."""
        if isinstance(error, StopException | NonRetryableException | KeyboardInterrupt | SystemExit | GeneratorExit):
            return False
        if not isinstance(error, RoundOver) and not self._explained(error):
            return False
        self._attempts += 1
        if self._attempts > ATTEMPTS_MAX:
            return False
        self._clean = self.state.roll_back(step.mark)
        self._regroup = self.membership.broken or str(error)
        return True

    def _explained(self, error: BaseException) -> bool:
        """Whether an error is that of a collective whose round is over; the news of that may come a little later."""
        return isinstance(error, RuntimeError | OSError) and self.membership.wait_broken(NEWS_WAIT_S)

    @property
    def step_times(self) -> list[float]:
        """How long each rank took for the last step, without the wait for the others."""
        return self._step_times

    # -- the whole -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self.close_round()
        if kind is None:
            if not self._over or self.membership.ended is None:
                self.membership.close_run()
            self.membership.leave("its training is done")
            return False
        self.membership.leave(f"it ended with {kind.__name__}: {error}")
        return kind is StopException


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
        self._parts: list[list[Array]] = []
        self._began = 0.0
        self._busy_s: float | None = None

    @property
    def indices(self) -> list[int]:
        """The samples of this worker's share, in one list."""
        return [index for micro in self.micro_batches for index in micro.indices]

    def __enter__(self) -> Step:
        self.entered = True
        self._began = time.monotonic()
        self.mark = self._run.state.begin()
        self._run.membership.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            busy_s = time.monotonic() - self._began if self._busy_s is None else self._busy_s
            self._run.finish_step(self, busy_s)
            return False
        return self._run.undo_step(self, error)

    def add(self, gradient: Array | Mapping[str, Array] | list[Array] | tuple[Array, ...]) -> None:
        """Bring the gradient of one micro-batch: an array, or several in a list or a dict."""
        import numpy as np

        self._shape = gradient
        arrays = _arrays(gradient)
        self._parts.append([np.array(array, copy=True) for array in arrays])

    def total(self) -> Any:
        """Return the sum over all micro-batches of all workers, in their order: the same bits for any world size."""
        ring = self._run.ring
        self._busy_s = time.monotonic() - self._began
        like = self._like(ring)
        sums = [
            ring.all_reduce_parts([part[index] for part in self._parts], like=sample)
            for index, sample in enumerate(like)
        ]
        return _rebuilt(self._shape, sums)

    def _like(self, ring: Ring) -> list[Array]:
        """What the gradients look like; who has no micro-batch in this step is told by the first worker."""
        import numpy as np

        count = -(-self.samples // (self._run.ledger.recipe.micro_batch or self.samples)) if self._run.ledger else 1
        short = self._run.ledger is not None and (
            count < ring.world_size if self._run.ledger.recipe.micro_batch else self.samples < ring.world_size
        )
        if not short:
            if not self._parts:
                raise UsageError("bring a gradient with step.add() before asking for step.total()")
            return self._parts[0]
        # With fewer micro-batches than workers the last ones always have some.
        root = ring.world_size - 1
        mine = pack([self._shape and _described(self._shape)]).to_bytes() if self._parts else None
        told = unpack(ring.broadcast(mine, root))[0]
        if not self._parts:
            self._shape = _undescribed(told)
        return self._parts[0] if self._parts else [np.asarray(a) for a in _arrays(self._shape)]

    _shape: Any = None


def choose_source(members: list[dict[str, Any]]) -> int:
    """Choose whose state all take: the most advanced that is whole; among equals one that was in step, then by rank."""
    whole = [rank for rank, one in enumerate(members) if one["clean"]]
    furthest = max(one["progress"] for one in members)
    if not whole or members[max(whole, key=lambda rank: members[rank]["progress"])]["progress"] < furthest:
        raise NonRetryableException(
            f"no worker holds the whole state of step {furthest} any more: start again from a checkpoint"
        )
    return max(whole, key=lambda rank: (members[rank]["progress"], members[rank]["synced"], -rank))


def _needs(one: dict[str, Any], source: dict[str, Any]) -> bool:
    return not one["clean"] or not one["synced"] or one["progress"] < source["progress"]


def _arrays(gradient: Any) -> list[Any]:
    if isinstance(gradient, Mapping):
        return [gradient[key] for key in sorted(gradient)]
    return list(gradient) if isinstance(gradient, list | tuple) else [gradient]


def _rebuilt(shape: Any, sums: list[Any]) -> Any:
    if isinstance(shape, Mapping):
        return dict(zip(sorted(shape), sums, strict=True))
    return type(shape)(sums) if isinstance(shape, list | tuple) else sums[0]


def _described(shape: Any) -> Any:
    """A stand-in for a gradient that weighs nothing: same structure, dtypes and shapes."""
    return {
        "keys": sorted(shape) if isinstance(shape, Mapping) else None,
        "several": isinstance(shape, list | tuple),
        "arrays": [(str(array.dtype), list(array.shape)) for array in _arrays(shape)],
    }


def _undescribed(told: Any) -> Any:
    import numpy as np

    arrays = [np.broadcast_to(np.zeros(1, dtype), shape) for dtype, shape in told["arrays"]]
    if told["keys"] is not None:
        return dict(zip(told["keys"], arrays, strict=True))
    return arrays if told["several"] else arrays[0]


#: The run whose state is being synced, for `State.sync`.
_running: list[Run] = []


def current() -> Run | None:
    """Return the run that is syncing its state at this moment."""
    return _running[-1] if _running else None


def elastic(state: State, *, membership: Membership | None = None) -> Run:
    """Take part in a training that outlives its workers; use it as a context manager.

    Under `holdfast launch` everything needed is in the environment.
    """
    return Run(state, membership if membership is not None else from_environ())
