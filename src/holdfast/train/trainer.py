"""The trainer's driver: carries out what the trainer machine decides, on the program's thread.

Every effect whose end matters returns the event that reports it, and the machine hears the coordinator's news before
each event. The driver decides nothing: it turns exceptions into events, and answers into the results of the program's
calls. The parts that differ between numpy, JAX and torch are passed in: a state, and a `Backend` for its collectives.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast import worker_telemetry
from holdfast.checkpoint.keys import ALONE
from holdfast.checkpoint.layout import pack, unpack
from holdfast.errors import (
    NotRetryableError,
    RendezvousClosedError,
    RendezvousError,
    RoundOverError,
    StopTrainingError,
    TrainingLostError,
    UsageError,
)
from holdfast.facts import Fact, facts
from holdfast.timer.heartbeat import heartbeat
from holdfast.train import events as t
from holdfast.train.given import Backend, Decider, NoBackend, Position, Rounds, StepCount
from holdfast.train.machine import NEWS_WAIT_S, VOTE_EVERY_S, TrainerMachine
from holdfast.train.membership import RoundView
from holdfast.train.ring import Ring
from holdfast.train.state import State
from holdfast.typed import learned

if TYPE_CHECKING:
    from holdfast.checkpoint import Checkpointer, Notices

#: How often it looks for such news.
LOOK_S = 0.02
#: How long a worker that leaves the loop waits for the others to do the same.
LEAVE_WAIT_S = 5.0

T = TypeVar("T")


class MachineDecides:
    """Decides by a machine in this process; `perform` carries one effect out."""

    shares_fate = False

    def __init__(
        self, machine: TrainerMachine, perform: Callable[[Trainer, t.TrainerEffect], t.TrainerEvent | None]
    ) -> None:
        self._machine = machine
        self._perform = perform

    def drive(self, trainer: Trainer, event: t.TrainerEvent) -> t.TrainerEffect | None:
        """Hand an event to the machine and carry out what follows from it, until there is an answer."""
        answer: t.TrainerEffect | None = None
        todo = deque([event])
        while todo:
            event = todo.popleft()
            for each in (*trainer.news(), event):
                for effect in self._machine.handle(each, time.monotonic()):
                    if type(effect) not in ACTS:
                        answer = effect
                    elif (report := self._perform(trainer, effect)) is not None:
                        todo.append(report)
        return answer

    def close(self) -> None:
        """There is nothing to release."""


class Trainer:
    """One worker's part in a training; `Run` and the coordinator of the first torchelastic use it."""

    def __init__(
        self,
        membership: Rounds,
        state: State | None = None,
        *,
        backend: Backend | None = None,
        checkpoints: Checkpointer | None = None,
        notices: Notices | None = None,
        operation_timeout_s: float | None = None,
        undoes: bool = True,
        vote_every_s: float = VOTE_EVERY_S,
        decider: Callable[[TrainerMachine], Decider] | None = None,
        shard: tuple[int, int] = ALONE,
    ) -> None:
        worker_telemetry.tell_facts()
        self.machine = TrainerMachine(vote_every_s, keeps=checkpoints is not None)
        self._decider: Decider = MachineDecides(self.machine, carry_out) if decider is None else decider(self.machine)
        self.membership = membership
        self.position: Position = StepCount()
        self.backend: Backend = backend if backend is not None else NoBackend()
        self.checkpoints = checkpoints
        self._state = state
        #: Which part of the state this worker holds, and how many parts there are.
        self._shard = shard
        self._notices = notices
        self._operation_timeout_s = operation_timeout_s
        #: Whether steps are marked and undone here; otherwise the program does that itself.
        self._undoes = undoes
        self._mark: Any = None
        self._view: RoundView | None = None
        self._ring: Ring | None = None
        self._is_open = False
        #: How a step is counted; given with the step.
        self._count: Callable[[], None] = lambda: None
        #: The error that an event was made from; raised in the program if it stands.
        self._error: BaseException | None = None
        self._touched = False
        self._asked = "first round"
        self._began = 0.0

    # -- what programs read --------------------------------------------------------------------------------------------

    @property
    def view(self) -> RoundView:
        """The present round."""
        if self._view is None:
            raise UsageError("there is no round yet: it begins with the first step")
        return self._view

    @property
    def ring(self) -> Ring:
        """The collectives of the present round."""
        if self._ring is None:
            raise UsageError("there is no round now: it begins with the next step")
        return self._ring

    @property
    def rank(self) -> int:
        """This worker's rank in the present round."""
        return self.view.rank

    @property
    def world_size(self) -> int:
        """How many workers the present round has."""
        return self.view.world_size

    @property
    def has_round(self) -> bool:
        """Whether this worker is connected to others."""
        return self._is_open

    # -- what programs ask for -----------------------------------------------------------------------------------------

    def next_step(self) -> bool:
        """Wait until a step may begin; return whether there is one. Raises if the training cannot go on."""
        match self.drive(t.StepAsked()):
            case t.StepGiven():
                return True
            case t.TooLate(reason):
                # This worker trained nothing: the code after the loop is for workers that hold the result.
                sentence = f"the replacement started after training had finished; exiting normally ({reason})"
                facts.warn("too_late", sentence)
                raise SystemExit(0)
            case t.TrainingFailed() as failed:
                raise self._failure(failed)
            case _:
                return False

    def form_round(self) -> RoundView:
        """Wait for a round whose members are connected, and leave the state as it is."""
        match self.drive(t.RoundAsked()):
            case t.RoundFormed():
                return self.view
            case t.RoundGone(reason):
                raise RoundOverError(reason)
            case t.TrainingFailed() as failed:
                raise self._failure(failed)
            case _:
                raise RendezvousClosedError("the training is over")

    def sync(self, state: State) -> None:
        """Make the state equal on all workers of the present round."""
        self._state = state
        answer = self.drive(t.SyncAsked())
        if isinstance(answer, t.RoundGone):
            raise RoundOverError(answer.reason)

    def share_state(self) -> None:
        """Take the state of the most advanced worker if this one's is not the same; for `State.sync`."""
        match self.drive(t.SharingAsked()):
            case t.RoundGone(reason):
                raise RoundOverError(reason)
            case t.TrainingFailed() as failed:
                raise self._failure(failed)

    def begin_step(self, count: Callable[[], None]) -> None:
        """Keep what is needed to undo the step; `count` is called once the step counts."""
        self._count = count
        self.drive(t.StepEntered())

    def end_step(self, seconds: float, *, last: bool = False) -> bool:
        """End a step that this worker has done; return whether it counts. Raises if this worker has to leave."""
        self._error = None
        match self.drive(t.StepDone(seconds, last)):
            case t.StepUndone():
                return False
            case t.MustLeave(reason):
                raise StopTrainingError(reason)
            case t.ErrorStands():
                assert self._error is not None
                raise self._error
            case _:
                return True

    def fail_step(self, error: BaseException) -> bool:
        """End a step that failed; says whether it was undone and comes again."""
        if self._decider.shares_fate and not isinstance(error, RoundOverError):
            return False  # the others of its replica know nothing of it, and end with this worker
        self._error = error
        return isinstance(self.drive(t.StepFailed(self._blame(error), str(error) or repr(error))), t.StepUndone)

    def stop(self, reason: str) -> None:
        """End the training for all workers soon; may be called from any thread."""
        facts.publish(Fact("training_stopped", f"a worker ends the training: {reason}", {"reason": reason}))
        self.membership.news.put(t.StopAsked())

    def leave(self, reason: str, *, failed: bool) -> None:
        """Leave for good; where the training did not fail here, end it for all."""
        if failed and self._decider.shares_fate:
            self.backend.close()
            self.membership.leave(reason)
        else:
            self.drive(t.LoopLeft(reason, failed))
        self._decider.close()

    def save(self) -> bool:
        """Save the state as it is now, in the background; return whether the save was accepted."""
        if self.checkpoints is None or self._state is None:
            return False
        saved = {"state": self._state.capture_to_save(), "position": self.position.snapshot()}
        return bool(self.checkpoints.save(self.position.step, saved, self._shard))

    # -- the loop ------------------------------------------------------------------------------------------------------

    def drive(self, event: t.TrainerEvent) -> t.TrainerEffect | None:
        """Have it decided what follows from an event, carry that out, and return the answer to the program."""
        return self._decider.drive(self, event)

    def news(self) -> list[t.TrainerEvent]:
        """Return what was heard since the last event, in its order."""
        news: list[t.TrainerEvent] = []
        while not self.membership.news.empty():
            news.append(self.membership.news.get())
        notice = self._notices.pending() if self._notices is not None else None
        if notice is not None:
            news.append(t.LeaveNoticed(notice.reason))
        return news

    # -- effects: rounds -----------------------------------------------------------------------------------------------

    def _ask_round(self, effect: t.AskRound) -> t.TrainerEvent:
        self._asked, self._began = effect.reason, time.monotonic()
        heartbeat()
        try:
            self._view = self.membership.join()
        except RendezvousClosedError as closed:
            ended = self.membership.ended
            return t.RunEnded(str(closed), failed=ended is not None and ended.failed)
        except RendezvousError as error:
            self._error = error
            return t.AskFailed(str(error))
        return t.RoundSealed(self._view.number, self._view.rank, self._view.world_size)

    def _open_round(self, _: t.OpenRound) -> t.TrainerEvent:
        def open_all() -> t.TrainerEvent:
            view = self.view
            if self.membership.listener is not None:
                self._ring = Ring.open(
                    view.rank,
                    view.world_size,
                    self.membership.listener,
                    view.peer,
                    view.token,
                    until=lambda ring: self.membership.on_break(ring.abort),
                )
                self._ring.timeout_s = self._operation_timeout_s
            self.backend.open(view, self.membership)
            self._is_open = True
            return t.RoundOpened()

        return self._together(open_all)

    def take_view(self, view: RoundView) -> None:
        """Be in a round that another process has agreed on for this one."""
        if self._view is not None:
            self._view.store.close()
        self._view = view

    def _close_round(self, _: t.CloseRound) -> None:
        self._is_open = False
        self.backend.close()
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _together(self, act: Callable[[], t.TrainerEvent]) -> t.TrainerEvent:
        """Do something with all workers of the round."""
        self._touched = False
        try:
            return act()
        except RoundOverError as over:
            return t.RoundLost(str(over), self._touched)

    # -- effects: the state --------------------------------------------------------------------------------------------

    def _sync_state(self, _: t.SyncState) -> t.TrainerEvent:
        assert self._state is not None
        _trainers.append(self)
        try:
            self._state.sync(self.world_size, self.rank)
        except RoundOverError as over:
            return t.RoundLost(str(over))
        finally:
            _trainers.pop()
        took_ms = (time.monotonic() - self._began) * 1000
        number, rank, world_size = self.view.number, self.rank, self.world_size
        facts.publish(
            Fact(
                "regrouped",
                f"round {number}: rank {rank} of {world_size} after {took_ms:.0f} ms ({self._asked})",
                {"round": number, "rank": rank, "world_size": world_size, "duration_ms": took_ms},
            )
        )
        return t.StateSynced()

    def _find_saved(self, effect: t.FindSaved) -> t.TrainerEvent:
        if self.checkpoints is None:
            return t.SavedFound(-1)
        group = self.checkpoints.latest(self._shard, timeout=effect.limit_s).group
        return t.SavedFound(-1 if group is None else group.step)

    def _tell_account(self, effect: t.TellAccount) -> t.TrainerEvent:
        return self._together(lambda: t.AccountsHeard(self._gather(effect.account, t.Account)))

    def _restore_saved(self, effect: t.RestoreSaved) -> t.TrainerEvent:
        if self.checkpoints is None:
            return t.SavedUnreadable()
        restored = self.checkpoints.restore(self._shard, after=effect.after, timeout=effect.limit_s)
        if restored is None:
            return t.SavedUnreadable()
        self._become(restored.tree)
        return t.SavedRestored(self.position.step)

    def _move_state(self, effect: t.MoveState) -> t.TrainerEvent:
        return self._together(lambda: self._move(effect))

    def _move(self, effect: t.MoveState) -> t.TrainerEvent:
        assert self._state is not None
        began = time.monotonic()
        carrier, gives = self.backend.carrier, self.rank == effect.source
        mine = None
        if gives and carrier is not None:
            mine = carrier.describe(self.position.snapshot())
        elif gives:
            tree = {"state": self._state.capture_snapshot(), "position": self.position.snapshot()}
            mine = pack(tree).to_bytes()
        data = (self.backend.broadcast or self.ring.broadcast)(mine, effect.source)
        takes = self._touched = self.rank in effect.to
        taken, nbytes = None, len(data)
        if carrier is not None:
            taken, nbytes = carrier.carry(data, effect.to)
        elif takes:
            taken = unpack(data, verify=False)
        if takes:
            self._become(taken)
        took_ms = (time.monotonic() - began) * 1000
        facts.publish(
            Fact(
                "state_synced",
                f"rank {effect.source} gave its state ({nbytes} bytes, step {self.position.step}) to "
                f"{len(effect.to)} of {self.world_size} workers in {took_ms:.0f} ms",
                {"duration_ms": took_ms, "bytes": nbytes, "source": effect.source, "to": list(effect.to)},
            )
        )
        return t.StateMoved(self.position.step)

    def _become(self, tree: Any) -> None:
        assert self._state is not None
        if tree["state"] is not None:
            self._state.apply_snapshot(tree["state"])
        if tree["position"] is not None:
            self.position.restore(tree["position"])

    def _gather(self, mine: T, kind: type[T]) -> tuple[T, ...]:
        texts = self.ring.all_gather(msgspec.msgpack.encode(mine))
        return tuple(msgspec.msgpack.decode(text, type=learned(kind)) for text in texts)

    # -- effects: steps ------------------------------------------------------------------------------------------------

    def _mark_state(self, _: t.MarkState) -> None:
        if self._undoes and self._state is not None:
            self._mark = self._state.begin()

    def _settle_sums(self, _: t.SettleSums) -> t.TrainerEvent:
        try:
            self.backend.settle()
        except (RuntimeError, OSError) as error:
            self._error = error
            return t.StepFailed(self._blame(error), str(error))
        return t.SumsSettled()

    def _blame(self, error: BaseException) -> t.Blame:
        return t.Blame.OWN if self.backend.is_own(error) else blame_of(error)

    def _count_step(self, _: t.CountStep) -> None:
        self._count()

    def _tell_vote(self, effect: t.TellVote) -> t.TrainerEvent:
        return self._together(lambda: t.VotesHeard(self._gather(effect.vote, t.Vote)))

    def _roll_back(self, _: t.RollBack) -> t.TrainerEvent:
        if not self._undoes or self._state is None:
            return t.StepRolledBack(whole=True)
        return t.StepRolledBack(self._state.roll_back(self._mark))

    def _await_news(self, _: t.AwaitNews) -> t.TrainerEvent:
        deadline = time.monotonic() + NEWS_WAIT_S
        reachable, gone = True, False
        while not gone and time.monotonic() < deadline and not self.membership.wait_broken(LOOK_S):
            reachable = reachable and self.membership.is_connected
            gone = self._ring is not None and self._ring.neighbour_gone()
        return t.NewsAwaited(gone, reachable)

    def _tell_straggler(self, effect: t.TellStraggler) -> None:
        slow = effect.slow
        self.membership.note(slow.sentence if slow is not None and slow.rank == self.rank else "")
        if slow is not None and effect.news and self.rank == 0:
            facts.warn("straggler", slow.sentence, ranks=[slow.rank], seconds=slow.seconds, median=slow.median)

    def _tell_retry(self, effect: t.TellRetry) -> None:
        facts.warn(
            "step_retried",
            f"step {effect.step} failed, and it is not known why; trying again in a new round: {effect.reason}",
            step=effect.step,
        )

    # -- effects: checkpoints and the end ------------------------------------------------------------------------------

    def is_save_due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return self.checkpoints is not None and self.checkpoints.should_save(self.position.step)

    def _save_if_due(self, _: t.SaveIfDue) -> None:
        if self.is_save_due():
            self.save()

    def _save_now(self, effect: t.SaveNow) -> None:
        notice = self._notices.pending() if self._notices is not None else None
        if self.checkpoints is not None and self.save() and effect.wait:
            self.checkpoints.wait(notice.seconds_left(time.time()) if notice is not None else None)

    def _await_all(self, _: t.AwaitAll) -> t.TrainerEvent:
        self.ring.timeout_s = LEAVE_WAIT_S
        with contextlib.suppress(RoundOverError):
            self.ring.barrier()
        return t.AllLeft()

    def _await_saves(self, _: t.AwaitSaves) -> None:
        if self.checkpoints is not None:
            self.checkpoints.wait()

    def _close_run(self, effect: t.CloseRun) -> None:
        self.membership.close_run(effect.reason, failed=effect.failed)

    def _leave(self, effect: t.Leave) -> None:
        self.membership.leave(effect.reason)

    def _failure(self, failed: t.TrainingFailed) -> BaseException:
        """Return the exception that the program gets when the training cannot continue."""
        error, self._error = self._error, None
        if isinstance(error, RendezvousError):
            return error
        return TrainingLostError(failed.reason) if failed.ends_job else NotRetryableError(failed.reason)


def blame_of(error: BaseException) -> t.Blame:
    """Return which side an error in a step belongs to, as far as its type tells."""
    if isinstance(error, RoundOverError):
        return t.Blame.ROUND
    own = isinstance(error, StopTrainingError | NotRetryableError)
    return t.Blame.UNCLEAR if isinstance(error, RuntimeError | OSError) and not own else t.Blame.OWN


#: How each effect is carried out; the others are answers to the program.
ACTS: dict[type, Callable[[Trainer, Any], t.TrainerEvent | None]] = {
    t.AskRound: Trainer._ask_round,
    t.OpenRound: Trainer._open_round,
    t.CloseRound: Trainer._close_round,
    t.SyncState: Trainer._sync_state,
    t.FindSaved: Trainer._find_saved,
    t.TellAccount: Trainer._tell_account,
    t.RestoreSaved: Trainer._restore_saved,
    t.MoveState: Trainer._move_state,
    t.MarkState: Trainer._mark_state,
    t.SettleSums: Trainer._settle_sums,
    t.CountStep: Trainer._count_step,
    t.TellVote: Trainer._tell_vote,
    t.RollBack: Trainer._roll_back,
    t.AwaitNews: Trainer._await_news,
    t.SaveIfDue: Trainer._save_if_due,
    t.SaveNow: Trainer._save_now,
    t.TellStraggler: Trainer._tell_straggler,
    t.TellRetry: Trainer._tell_retry,
    t.AwaitAll: Trainer._await_all,
    t.AwaitSaves: Trainer._await_saves,
    t.CloseRun: Trainer._close_run,
    t.Leave: Trainer._leave,
}


def carry_out(trainer: Trainer, effect: t.TrainerEffect) -> t.TrainerEvent | None:
    """Carry one effect out in this process; returns the event that reports its end, if that matters."""
    return ACTS[type(effect)](trainer, effect)


#: The trainers that are syncing their state, for `State.sync`.
_trainers: list[Trainer] = []


def current() -> Trainer | None:
    """Return the trainer that is syncing its state at this moment."""
    return _trainers[-1] if _trainers else None
