"""The trainer: one worker's part in a training that outlives its workers. Pure.

It decides when to ask for a round, whose state all workers take when one begins, when a step counts, what an error in a
step means, and how this worker leaves. It knows neither tensors nor sockets: collectives, copies of the state, files
and the coordinator are its driver's. The program's thread brings most events, and every call of the program ends in one
answer. The coordinator's news come in between.

              StepAsked           RoundSealed         RoundOpened          StateSynced
    IDLE ─────────────▶ JOINING ─────────────▶ OPENING ───────────▶ SYNCING ──────────▶ READY ◀──────────────┐
                           ▲                      │                    │                  │ StepEntered      │
                           │                      └─── RoundLost ──────┘                  ▼                  │
                           │                              ▼         StepFailed         STEPPING              │
                           └────── StepAsked ────────  BROKEN ◀──── UNDOING ◀──────────── │ StepDone         │
                                                          ▲            ▲                  ▼                  │
                                                          │            └────────────── SETTLING              │
                                                          │ RoundLost                     │ SumsSettled      │
                                                          └──────────────────────────── VOTING ──VotesHeard──┘

The rules:

1. A step counts once all its collectives have finished here, whatever happens to the others. A worker whose sums
   never arrived undoes the step and takes it from one that has it.
2. No step begins from a state that is not whole. Whatever changes the state outside of a step (a transfer, a restore)
   first marks it as not whole, and marks it as whole at its end.
3. When a round begins, all workers take the most advanced whole state, or a checkpoint that is further than all of
   them. Of states that have the same step, counted in different rounds, the later round's is taken. A worker looks for
   checkpoints unless it comes straight and soon from the last round with a whole state. If the one that wrote
   checkpoints in that round is not among them, all look: it may have counted and saved a step that they undid. A worker
   that can go on without a checkpoint waits only so long for one to be found, and tries only so often to read it.
4. If no whole state is as far as a worker once was, the training goes back to the newest checkpoint, or to a whole
   state that is further than that. Without a checkpoint it ends as failed, and the job with it: it never starts again
   at an earlier step by itself, and a new worker could not mend it. A worker that was away while the others went back
   does not count.
5. An error that a lost worker may have caused is not taken for the program's own while something explains it: news
   that the round is over, a neighbour that closed its connection, or a coordinator that cannot be asked. An error that
   nothing explains is tried again in another round; it stands if the same step fails like this once more.
6. Before this worker gives up a state that may be the only one, it saves it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from holdfast.train import events as t
from holdfast.train.events import Account, Blame, TrainerEffect, TrainerEvent, Vote
from holdfast.train.source import Plan, choose_source, may_be_behind
from holdfast.train.stragglers import Stragglers

#: Workers vote this often, or at every step if steps take longer; and at least once in this many steps.
VOTE_EVERY_S = 0.1
VOTE_STEPS_MAX = 10
#: This many errors of one step are tried again although nothing explains them.
UNEXPLAINED_MAX = 1
#: After this many attempts at one step the error stands, whatever explains it.
ATTEMPTS_MAX = 100
#: How long the driver waits after an error for news that explains it.
NEWS_WAIT_S = 2.0
#: How often a checkpoint may vanish while it is restored.
RESTORES_MAX = 3
#: How long a worker that has a whole state looks for a checkpoint that is further.
LOOK_MAX_S = 5.0
#: A round that took longer than this to form costs little more if its workers look for checkpoints, too. Workers that
#: they waited for in vain may have saved their state before they gave up.
LONG_WAIT_S = 1.0

HALF_BEGUN = (
    "the worker whose state the others were taking over is gone, and no step had been done; a new worker begins in the "
    "place of this one"
)
UNREADABLE = (
    "there are checkpoints, but none can be read: see `holdfast checkpoints DIR --verify`; "
    "to begin anew, move them away"
)


class Stage(enum.StrEnum):
    """The stage of a worker."""

    IDLE = "idle"
    JOINING = "joining"
    OPENING = "opening"
    OPEN = "open"
    SYNCING = "syncing"
    READY = "ready"
    STEPPING = "stepping"
    SETTLING = "settling"
    VOTING = "voting"
    #: A step failed, and the reason is not known yet.
    DOUBTING = "doubting"
    UNDOING = "undoing"
    BROKEN = "broken"
    LEAVING = "leaving"
    OVER = "over"


IN_ROUND = frozenset(
    {
        Stage.OPENING,
        Stage.OPEN,
        Stage.SYNCING,
        Stage.READY,
        Stage.STEPPING,
        Stage.SETTLING,
        Stage.VOTING,
        Stage.DOUBTING,
    }
)
#: Stages in which the state is whole and equal on all workers of the round but for the step that is under way.
IN_STEP = frozenset({Stage.READY, Stage.STEPPING, Stage.SETTLING, Stage.VOTING})


class TrainerMachine:
    """Decides for one worker; see the module's opening.

    `keeps` says whether the training has checkpoints. Every wait is an effect whose driver bounds it, so time alone
    changes nothing here.
    """

    def __init__(self, vote_every_s: float = VOTE_EVERY_S, *, keeps: bool = True) -> None:
        self.stage = Stage.IDLE
        self._keeps = keeps
        self._vote_every_s = vote_every_s
        self.round: t.RoundSealed | None = None
        #: How many steps the state has.
        self.step = 0
        #: Whether the state is whole; see `Account`.
        self.whole = True
        self.synced = False
        self.stragglers = Stragglers()
        #: Why the next step needs another round; None while the present one can be used.
        self._regroup: str | None = "first round"
        #: The newest round that is known to be over, and why.
        self._broken: tuple[int, str] = (0, "")
        self._newcomers = False
        self._closed: t.RunEnded | None = None
        self._over = False
        self._stops = False
        self._notice: str | None = None
        #: Whether the program syncs the state itself, and so gets its answer once there is a round.
        self._only_round = False
        self._sharing = False
        self._plan: Plan | None = None
        self._whole_before = True
        #: The round in which the last step was counted, and that of the state which is being taken.
        self._counted_in = 0
        self._takes_from = 0
        #: The last round in which the state was shared, and this worker's rank in it.
        self._shared_in, self._shared_as = 0, -1
        #: When a round was asked for, and whether it took long.
        self._now = self._asked_at = 0.0
        self._waited_long = False
        #: The newest checkpoint that this worker can read; None where it has not looked.
        self._saved: int | None = None
        #: This worker goes on without checkpoints up to this step: it could not read them.
        self.refused = -1
        self._seconds = 0.0
        self._vote_at = 0
        self._voted = -1
        self._unexplained = 0
        self._attempts = 0
        self._restores = 0
        self._reason = ""
        self._out: list[TrainerEffect] = []

    # -- the contract --------------------------------------------------------------------------------------------------

    def handle(self, event: TrainerEvent, now: float) -> list[TrainerEffect]:
        """Decide what one event means."""
        self._now = now
        match event:  # what every step brings first
            case (
                t.StepEntered() | t.StepDone() | t.SumsSettled() | t.StepFailed() | t.NewsAwaited() | t.StepRolledBack()
            ):
                self._on_step(event)
            case t.StepAsked() | t.RoundAsked() | t.SyncAsked() | t.LoopLeft() | t.AllLeft():
                self._on_program(event)
            case t.VotesHeard():
                self._on_votes(event.votes)
            case t.RoundBroken() | t.NewcomersWait() | t.StopAsked() | t.LeaveNoticed():
                self._on_news(event)
            case t.RunEnded():
                self._on_closed(event)
            case t.RoundSealed() | t.AskFailed() | t.RoundOpened() | t.RoundLost():
                self._on_round(event)
            case _:
                self._on_state(event)
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Time alone changes nothing."""
        return None

    def check(self) -> None:
        """Assert every invariant."""
        assert self.round is not None or self.stage not in IN_ROUND, f"{self.stage} without a round"
        assert self.whole or self.stage not in IN_STEP, f"{self.stage} with a state that is not whole"
        assert self.synced or self.stage not in IN_STEP, f"{self.stage} with a state of its own"
        assert not self._sharing or self.stage is Stage.SYNCING, f"sharing while {self.stage}"
        assert self._regroup is None or self.stage not in (Stage.STEPPING, Stage.SETTLING), "a step before a round"

    def snapshot(self) -> dict[str, Any]:
        """Describe the trainer as plain data."""
        return {
            "stage": self.stage.value,
            "round": self.round.number if self.round is not None else 0,
            "step": self.step,
            "whole": self.whole,
            "synced": self.synced,
            "reason": self._regroup or "",
        }

    @property
    def broken(self) -> str | None:
        """Why the present round is over, as far as the coordinator has said."""
        number, reason = self._broken
        return reason if self.round is not None and number >= self.round.number else None

    @property
    def needs_round(self) -> bool:
        """Whether the next step needs another round."""
        return self._regroup is not None or self.broken is not None

    # -- news ----------------------------------------------------------------------------------------------------------

    def _on_news(self, event: t.RoundBroken | t.NewcomersWait | t.StopAsked | t.LeaveNoticed) -> None:
        match event:
            case t.RoundBroken():
                self._broken = max(self._broken, (event.number, event.reason))
            case t.NewcomersWait():
                self._newcomers = event.count > 0
            case t.StopAsked():
                self._stops = True
            case t.LeaveNoticed():
                self._notice = event.reason

    def _on_closed(self, closed: t.RunEnded) -> None:
        self._closed = self._closed or closed
        if self.stage is not Stage.JOINING:
            self._broken = max(self._broken, (self.round.number if self.round is not None else 0, closed.reason))
            return
        # JOINING -> OVER
        self.stage = Stage.OVER
        if closed.failed:
            self._save_the_last()
            self._out.append(t.TrainingFailed(closed.reason, ends_job=True))
        elif self.synced:
            self._out.append(t.TrainingOver())
        else:
            self._out.append(t.TooLate(closed.reason))

    # -- the program ---------------------------------------------------------------------------------------------------

    def _on_program(self, event: t.StepAsked | t.RoundAsked | t.SyncAsked | t.LoopLeft | t.AllLeft) -> None:
        match event:
            case t.StepAsked():
                self._only_round = False
                self._regroup = self._regroup or self.broken
                if self._over or self.stage is Stage.OVER:
                    self._out.append(t.TrainingOver())
                elif self._regroup is None:
                    self._out.append(t.StepGiven())
                else:
                    self._ask(self._regroup)
            case t.RoundAsked():
                self._only_round = True
                self._ask(self._regroup or self.broken or "asked for")
            case t.SyncAsked():
                self.stage = Stage.SYNCING  # OPEN -> SYNCING
                self._out.append(t.SyncState())
            case t.LoopLeft():
                self._on_left(event)
            case t.AllLeft():
                self._leave(failed=False)

    def _on_left(self, left: t.LoopLeft) -> None:
        stands = self.stage is Stage.READY and self.broken is None
        self.stage = Stage.LEAVING
        self._reason = left.reason
        if not left.failed and stands and self._voted < self.step - 1:
            # A worker that is a moment behind must not hear of the end in the middle of its last step.
            self._out.append(t.AwaitAll())
        else:
            self._leave(failed=left.failed)

    def _leave(self, *, failed: bool) -> None:
        self.stage = Stage.OVER
        self._out += [t.CloseRound(), t.AwaitSaves()]
        if not failed and self._closed is None:
            self._out.append(t.CloseRun(self._reason))
        self._out += [t.Leave(self._reason), t.Left()]

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _ask(self, reason: str) -> None:
        self.stage = Stage.JOINING
        self._regroup = reason
        self._asked_at = self._now
        self._out.append(t.CloseRound())
        if self._closed is not None:
            self._on_closed(self._closed)
        else:
            self._out.append(t.AskRound(reason))

    def _on_round(self, event: t.RoundSealed | t.AskFailed | t.RoundOpened | t.RoundLost) -> None:
        match event:
            case t.RoundSealed() if self.stage is Stage.JOINING:
                self.stage = Stage.OPENING
                self.round = event
                self._newcomers = False
                self._vote_at = 0
                self._waited_long = self._now - self._asked_at > LONG_WAIT_S
                self._out.append(t.OpenRound())
            case t.AskFailed() if self.stage is Stage.JOINING:
                self.stage = Stage.OVER
                self._save_the_last()
                self._out.append(t.TrainingFailed(event.reason))
            case t.RoundOpened() if self.stage is Stage.OPENING:
                if self._only_round:
                    self.stage = Stage.OPEN
                    self._out.append(t.RoundFormed())
                else:
                    self.stage = Stage.SYNCING
                    self._out.append(t.SyncState())
            case t.RoundLost():
                self._on_lost(event)
            case _:
                pass  # the training was over before the answer came

    def _on_lost(self, lost: t.RoundLost) -> None:
        if self.stage is Stage.VOTING:
            self._regroup = lost.reason
            self._after_step()
            return
        if self._plan is not None and not lost.touched:
            self.whole = self._whole_before
        self._plan = None
        if self._sharing:  # the state's own `sync` gets the error, and ends
            self._sharing = False
            self._out.append(t.RoundGone(lost.reason))
        elif self._only_round:
            self.stage = Stage.BROKEN
            self._regroup = lost.reason
            self._out.append(t.RoundGone(lost.reason))
        else:
            self._ask(lost.reason)

    # -- the same state for all ----------------------------------------------------------------------------------------

    def _on_state(self, event: TrainerEvent) -> None:
        match event:
            case t.SharingAsked():
                self._sharing, self._saved = True, None
                if self._comes_straight():
                    self._tell_account()
                else:
                    self._look()
            case t.SavedFound():
                self._saved = event.step
                self._tell_account()
            case t.AccountsHeard():
                self._on_accounts(event.accounts)
            case t.SavedRestored():
                self.step, self._restores, self._counted_in = event.step, 0, self._round_number
                self._move()
            case t.SavedUnreadable():
                self._on_unreadable()
            case t.StateMoved():
                self.step = event.step
                self._counted_in = self._takes_from
                self._on_shared()
            case t.StateSynced():
                self.stage = Stage.READY
                self.whole = self.synced = True
                self._regroup = None
                assert self.round is not None
                self._shared_in, self._shared_as = self.round.number, self.round.rank
                self._out.append(t.StepGiven())
            case _:
                raise AssertionError(f"{event} while {self.stage}")

    @property
    def _round_number(self) -> int:
        return self.round.number if self.round is not None else 0

    @property
    def _was_in_last(self) -> bool:
        return self._shared_in > 0 and self._shared_in == self._round_number - 1

    def _comes_straight(self) -> bool:
        """Whether only a worker that was in the last round with this one can have saved a later step."""
        long = self._waited_long and self._keeps
        return self.synced and self.whole and self._was_in_last and not long

    def _look(self) -> None:
        # A worker that has nothing else must know what there is, however long that takes.
        self._out.append(t.FindSaved(LOOK_MAX_S if self.synced and self.whole else None))

    def _tell_account(self) -> None:
        straight, saved = self._keeps and self._saved is None, -1 if self._saved is None else self._saved
        wrote = self._was_in_last and self._shared_as == 0
        mine = Account(self.step, self.whole, self.synced, saved, self._counted_in, straight, wrote, self.refused)
        self._out.append(t.TellAccount(mine))

    def _on_accounts(self, accounts: Sequence[Account]) -> None:
        if may_be_behind(accounts):  # all hear the same, so all tell their accounts once more
            if self._saved is None:
                self._look()
            else:
                self._tell_account()
            return
        chosen = choose_source(accounts)
        if chosen == 0:
            # No step is lost: workers in the places of these begin with the state that a program begins with.
            self._sharing, self.stage = False, Stage.OVER
            self._out.append(t.TrainingFailed(HALF_BEGUN))
            return
        if isinstance(chosen, int):
            self._fail(
                f"no worker holds the whole state of step {chosen} any more, and there is no checkpoint to go back to"
            )
            return
        self._plan, self._whole_before = chosen, self.whole
        self._takes_from = self._round_number if chosen.restores else accounts[chosen.source].counted_in
        if chosen.restores and chosen.source == self._rank:
            self.whole = False
            self._out.append(t.RestoreSaved(chosen.after, None if chosen.after is None else LOOK_MAX_S))
        else:
            self._move()

    def _on_unreadable(self) -> None:
        assert self._plan is not None
        unread = self._plan.saved
        self.whole, self._plan = self._whole_before, None
        self._restores += 1
        if self._restores >= RESTORES_MAX:
            self._restores = 0
            if not (self.whole and self.synced):
                # This worker ends, and is replaced a while later; by then the storage may be back.
                self._sharing, self.stage = False, Stage.OVER
                self._out.append(t.TrainingFailed(UNREADABLE))
                return
            self.refused = unread
        self._on_lost(t.RoundLost("the checkpoint that was there a moment ago cannot be read any more"))

    def _move(self) -> None:
        plan = self._plan
        assert plan is not None
        if not plan.to:
            self._on_shared()
            return
        if self._rank in plan.to:
            self.whole = False
        self._out.append(t.MoveState(plan.source, plan.to))

    def _on_shared(self) -> None:
        self._plan = None
        self._sharing = False
        self.whole = self.synced = True
        self._out.append(t.StateShared())

    def _fail(self, reason: str) -> None:
        """The training cannot continue: end it for all, so that no replacement starts it again."""
        self._sharing = False
        self.stage = Stage.OVER
        self._out += [t.CloseRun(reason, failed=True), t.TrainingFailed(reason, ends_job=True)]

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _on_step(
        self, event: t.StepEntered | t.StepDone | t.SumsSettled | t.StepFailed | t.NewsAwaited | t.StepRolledBack
    ) -> None:
        match event:
            case t.StepEntered():
                self.stage = Stage.STEPPING
                self._out += [t.MarkState(), t.StepBegun()]
            case t.StepDone():
                self.stage = Stage.SETTLING
                self._seconds = event.seconds
                self._vote_at = 0 if event.last else self._vote_at
                self._out.append(t.SettleSums())
            case t.SumsSettled():
                self._count()
            case t.StepFailed():
                self._on_failed(event)
            case t.NewsAwaited():
                self._judge(event)
            case t.StepRolledBack():
                self.stage = Stage.BROKEN
                self.whole = event.whole
                self._out.append(t.StepUndone())

    def _count(self) -> None:
        number = self.step
        self.step += 1
        self._counted_in = self._round_number
        self._unexplained = self._attempts = 0
        self._out.append(t.CountStep())
        if number < self._vote_at:
            self._after_step()
            return
        # All workers know the same figures, so all vote after the same steps. Each vote waits for the slowest worker.
        self.stage = Stage.VOTING
        self._out.append(t.TellVote(Vote(number, self._newcomers, self._stops, self._seconds)))

    def _on_votes(self, votes: Sequence[Vote]) -> None:
        number = self.step - 1
        if any(vote.step != number for vote in votes):
            self._on_lost(t.RoundLost(f"the workers are at different steps: {[vote.step for vote in votes]}"))
            return
        seconds = [vote.seconds for vote in votes]
        step_s = max(*seconds, VOTE_EVERY_S / VOTE_STEPS_MAX)
        self._vote_at = number + max(int(self._vote_every_s / step_s), 1)
        self._voted = number
        news = self.stragglers.observe(seconds)
        self._out.append(t.TellStraggler(self.stragglers.slow, news is not None))
        if any(vote.stop for vote in votes):
            self._over = True
        elif any(vote.newcomers for vote in votes):
            self._regroup = "newcomers wait"
        self._after_step()

    def _after_step(self) -> None:
        """Save a checkpoint if one is due, and leave if a notice was given."""
        self.stage = Stage.READY if self._regroup is None else Stage.BROKEN
        if self._rank == 0:
            self._out.append(t.SaveIfDue())
        if self._notice is None:
            self._out.append(t.StepCounted())
        else:
            self._out += [t.SaveNow(), t.MustLeave(self._notice)]

    def _on_failed(self, failed: t.StepFailed) -> None:
        self._reason = failed.reason
        if self.round is None or self.stage not in IN_STEP:
            # A program that syncs by itself has failed outside of a step: there is nothing to undo.
            self.stage, self._regroup = Stage.BROKEN, failed.reason
            self._out.append(t.StepUndone())
            return
        if failed.blame is Blame.OWN:
            self._let_stand()
        elif failed.blame is Blame.ROUND or self.broken is not None:
            self._undo(self.broken or failed.reason)
        elif self.round.world_size == 1:  # no other worker can have caused it
            self._let_stand()
        else:
            self.stage = Stage.DOUBTING
            self._out.append(t.AwaitNews())

    def _judge(self, awaited: t.NewsAwaited) -> None:
        """Decide whether an error is the program's own."""
        if self.broken is not None or awaited.neighbour_gone or not awaited.reachable:
            self._undo(self.broken or self._reason)
        elif self._unexplained < UNEXPLAINED_MAX:
            self._unexplained += 1
            self._out.append(t.TellRetry(self.step, self._reason))
            self._undo(self._reason)
        else:
            self._let_stand()

    def _undo(self, reason: str) -> None:
        self._attempts += 1
        if self._attempts > ATTEMPTS_MAX:
            self._let_stand()
            return
        self.stage = Stage.UNDOING
        self._regroup = reason
        self._out.append(t.RollBack())

    def _let_stand(self) -> None:
        """Let the program's error be raised; if the program continues nevertheless, it takes a peer's state."""
        self.stage = Stage.BROKEN
        self.whole = False
        self._regroup = f"a step failed: {self._reason}"
        self._out.append(t.ErrorStands())

    # -- small things --------------------------------------------------------------------------------------------------

    @property
    def _rank(self) -> int:
        return self.round.rank if self.round is not None else 0

    def _save_the_last(self) -> None:
        """Save a state that may be the only one of its step."""
        if self.whole and self.synced and self.step > 0:
            self._out.append(t.SaveNow())
