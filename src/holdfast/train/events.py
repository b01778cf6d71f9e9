"""The events and effects of the trainer machine. Pure.

An effect whose end matters names the events that report it. An `Answer` goes to the program: it says what the call that
brought the event returns or raises. All are structs because each step makes many of them.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.train.stragglers import Slow

# -- what workers tell each other --------------------------------------------------------------------------------------


class Account(msgspec.Struct, frozen=True, array_like=True):
    """What one worker holds when a round begins."""

    #: How many steps its state has.
    step: int
    #: Whether the state is whole: no step and no transfer left it half-changed.
    whole: bool
    #: Whether the state has been equal to that of other workers, in this process's life.
    synced: bool
    #: The step of the newest checkpoint that this worker can read; -1 for none, or where it did not look.
    saved: int = -1
    #: The round in which its last step was counted, or its state restored. States with the same step of the same round
    #: are the same.
    counted_in: int = 0
    #: Whether it comes straight from the last round with a whole state, and so did not look for checkpoints.
    straight: bool = False
    #: Whether it was the one that writes checkpoints in the last round: none of them is further than it was.
    wrote: bool = False
    #: It could not read checkpoints of steps up to this one, though it tried; -1 for none.
    refused: int = -1


class Vote(msgspec.Struct, frozen=True, array_like=True):
    """One worker's message to the others at the end of a step."""

    step: int
    newcomers: bool = False
    stop: bool = False
    #: How long the step took here, without the wait for the others.
    seconds: float = 0.0


# -- events: rounds ----------------------------------------------------------------------------------------------------


class RoundSealed(msgspec.Struct, frozen=True):
    """The coordinator sealed a round with this worker in it."""

    number: int
    rank: int
    world_size: int


class AskFailed(msgspec.Struct, frozen=True):
    """No round was formed in time, or this worker was refused."""

    reason: str


class RunEnded(msgspec.Struct, frozen=True):
    """The training is over for all workers; `failed` if it did not succeed."""

    reason: str
    failed: bool = False


class RoundBroken(msgspec.Struct, frozen=True):
    """The coordinator says that a round is over."""

    number: int
    reason: str


class NewcomersWait(msgspec.Struct, frozen=True):
    """The number of workers that wait to join."""

    count: int


class RoundOpened(msgspec.Struct, frozen=True):
    """This worker is connected to the others of its round."""


class RoundLost(msgspec.Struct, frozen=True):
    """A collective operation of the workers did not finish: one of them is gone, or the round is over.

    `touched` if a transfer had already changed this worker's state.
    """

    reason: str
    touched: bool = False


# -- events: the state -------------------------------------------------------------------------------------------------


class SharingAsked(msgspec.Struct, frozen=True):
    """The state asks to be made equal on all workers."""


class SavedFound(msgspec.Struct, frozen=True):
    """The newest checkpoint that this worker can read is of this step; -1 if there is none."""

    step: int


class AccountsHeard(msgspec.Struct, frozen=True):
    """Every worker has told what it holds, in the order of ranks."""

    accounts: tuple[Account, ...]


class SavedRestored(msgspec.Struct, frozen=True):
    """The state is now that of the checkpoint."""

    step: int


class SavedUnreadable(msgspec.Struct, frozen=True):
    """The checkpoint that was there a moment ago cannot be read; the state is as it was."""


class StateMoved(msgspec.Struct, frozen=True):
    """The transfer is complete; `step` is the number of steps of the state now."""

    step: int


class StateSynced(msgspec.Struct, frozen=True):
    """The state's own `sync` has returned."""


# -- events: steps -----------------------------------------------------------------------------------------------------


class RoundAsked(msgspec.Struct, frozen=True):
    """The program asks for a round, and syncs the state itself."""


class SyncAsked(msgspec.Struct, frozen=True):
    """The program asks for the state to be made equal in the round that it has."""


class StepAsked(msgspec.Struct, frozen=True):
    """The program asks for its next step."""


class StepEntered(msgspec.Struct, frozen=True):
    """The program begins the step."""


class StepDone(msgspec.Struct, frozen=True):
    """The program has done its part of the step; `last` if no other step follows."""

    seconds: float
    last: bool = False


class SumsSettled(msgspec.Struct, frozen=True):
    """Every collective of the step has done its work."""


class Blame(enum.Enum):
    """Which side an error in a step belongs to, as far as its type tells."""

    #: The round is over; only our own collectives raise it.
    ROUND = "round"
    #: A collective raises such an error when another worker is gone, and a program for reasons of its own.
    UNCLEAR = "unclear"
    #: The program's own, or a request to end.
    OWN = "own"


class StepFailed(msgspec.Struct, frozen=True):
    """The step ended with an error."""

    blame: Blame
    reason: str


class NewsAwaited(msgspec.Struct, frozen=True):
    """Something explains the error, or the time to wait for that is up; news comes before this event."""

    #: Whether a neighbour in the round has closed its connection.
    neighbour_gone: bool
    #: Whether the coordinator could be reached all the time.
    reachable: bool


class StepRolledBack(msgspec.Struct, frozen=True):
    """The state is as it was before the step, unless it is not `whole`."""

    whole: bool


class VotesHeard(msgspec.Struct, frozen=True):
    """Every worker has said how the step ended for it, in the order of ranks."""

    votes: tuple[Vote, ...]


# -- events: the end ---------------------------------------------------------------------------------------------------


class StopAsked(msgspec.Struct, frozen=True):
    """The program wants the training to end for all workers."""


class LeaveNoticed(msgspec.Struct, frozen=True):
    """This worker must be gone soon."""

    reason: str


class LoopLeft(msgspec.Struct, frozen=True):
    """The program has left its loop; `failed` if by an error."""

    reason: str
    failed: bool = False


class AllLeft(msgspec.Struct, frozen=True):
    """The others have left their loops too, or the time to wait for them is up."""


TrainerEvent = (
    RoundSealed
    | AskFailed
    | RunEnded
    | RoundBroken
    | NewcomersWait
    | RoundOpened
    | RoundLost
    | SharingAsked
    | SavedFound
    | AccountsHeard
    | SavedRestored
    | SavedUnreadable
    | StateMoved
    | StateSynced
    | RoundAsked
    | SyncAsked
    | StepAsked
    | StepEntered
    | StepDone
    | SumsSettled
    | StepFailed
    | NewsAwaited
    | StepRolledBack
    | VotesHeard
    | StopAsked
    | LeaveNoticed
    | LoopLeft
    | AllLeft
)


# -- effects -----------------------------------------------------------------------------------------------------------


class AskRound(msgspec.Struct, frozen=True):
    """Ask the coordinator for a round; ends in `RoundSealed`, `RunEnded` or `AskFailed`."""

    reason: str


class OpenRound(msgspec.Struct, frozen=True):
    """Connect to the others of the round; ends in `RoundOpened` or `RoundLost`."""


class CloseRound(msgspec.Struct, frozen=True):
    """Release everything that belongs to the round."""


class SyncState(msgspec.Struct, frozen=True):
    """Let the state make itself equal on all workers; ends in `StateSynced` or `RoundLost`.

    By default the state asks for that by `SharingAsked` meanwhile.
    """


class FindSaved(msgspec.Struct, frozen=True):
    """Look for the newest checkpoint; ends in `SavedFound`.

    Where there is a limit, what has not been found by then, or cannot be asked, counts as not there.
    """

    limit_s: float | None = None


class TellAccount(msgspec.Struct, frozen=True):
    """Tell all workers what this one holds; ends in `AccountsHeard` or `RoundLost`."""

    account: Account


class RestoreSaved(msgspec.Struct, frozen=True):
    """Restore the newest checkpoint that can be read; ends in `SavedRestored` or `SavedUnreadable`.

    With `after`, one of a later step than this, or none. The limit is that of `FindSaved`.
    """

    after: int | None = None
    limit_s: float | None = None


class MoveState(msgspec.Struct, frozen=True):
    """Send the state of the rank `source` to the ranks in `to`; ends in `StateMoved` or `RoundLost`."""

    source: int
    to: tuple[int, ...]


class MarkState(msgspec.Struct, frozen=True):
    """Keep what is needed to undo the step."""


class SettleSums(msgspec.Struct, frozen=True):
    """Wait until the collectives of the step have done their work; ends in `SumsSettled` or `StepFailed`."""


class CountStep(msgspec.Struct, frozen=True):
    """The step counts: advance the ledger."""


class TellVote(msgspec.Struct, frozen=True):
    """Tell all workers how the step ended here; ends in `VotesHeard` or `RoundLost`."""

    vote: Vote


class RollBack(msgspec.Struct, frozen=True):
    """Undo the step; ends in `StepRolledBack`."""


class AwaitNews(msgspec.Struct, frozen=True):
    """Wait, but not for long, for news or for the end of a neighbour's connection; ends in `NewsAwaited`."""


class SaveIfDue(msgspec.Struct, frozen=True):
    """Save a checkpoint if one is due; in the background."""


class SaveNow(msgspec.Struct, frozen=True):
    """Save a checkpoint and, with `wait`, wait until it is written or the time is up."""

    wait: bool = True


class TellStraggler(msgspec.Struct, frozen=True):
    """Show which rank keeps the others waiting; None if none does. `news` if that was not known before."""

    slow: Slow | None
    news: bool


class TellRetry(msgspec.Struct, frozen=True):
    """Report that a step failed for an unknown reason, and that it is tried again."""

    step: int
    reason: str


class AwaitAll(msgspec.Struct, frozen=True):
    """Wait, but not for long, until the others have done their last step too; ends in `AllLeft`."""


class AwaitSaves(msgspec.Struct, frozen=True):
    """Wait until every checkpoint that was begun is written."""


class CloseRun(msgspec.Struct, frozen=True):
    """End the training for all workers; if it `failed`, no worker starts it again."""

    reason: str
    failed: bool = False


class Leave(msgspec.Struct, frozen=True):
    """Leave for good."""

    reason: str


# -- answers to the program --------------------------------------------------------------------------------------------


class StepGiven(msgspec.Struct, frozen=True):
    """There is a round, all its workers have the same state, and the next step may begin."""


class StepBegun(msgspec.Struct, frozen=True):
    """The step may change the state."""


class StepCounted(msgspec.Struct, frozen=True):
    """The step counts, whatever happens to the others."""


class StepUndone(msgspec.Struct, frozen=True):
    """The step was undone and will be done again."""


class ErrorStands(msgspec.Struct, frozen=True):
    """The error is the program's own and is raised."""


class StateShared(msgspec.Struct, frozen=True):
    """The state is the same on all workers of the round."""


class RoundFormed(msgspec.Struct, frozen=True):
    """There is a round, and this worker is connected to the others."""


class RoundGone(msgspec.Struct, frozen=True):
    """The round was over before the request was done."""

    reason: str


class TrainingOver(msgspec.Struct, frozen=True):
    """All steps are done."""


class TooLate(msgspec.Struct, frozen=True):
    """The training ended before this worker had any part in it."""

    reason: str


class TrainingFailed(msgspec.Struct, frozen=True):
    """The training cannot continue; `ends_job` if it could not with a new worker either."""

    reason: str
    ends_job: bool = False


class MustLeave(msgspec.Struct, frozen=True):
    """This worker leaves now; its checkpoint is saved."""

    reason: str


class Left(msgspec.Struct, frozen=True):
    """This worker has left."""


Answer = (
    StepGiven
    | StepBegun
    | StepCounted
    | StepUndone
    | ErrorStands
    | StateShared
    | RoundFormed
    | RoundGone
    | TrainingOver
    | TooLate
    | TrainingFailed
    | MustLeave
    | Left
)

TrainerEffect = (
    AskRound
    | OpenRound
    | CloseRound
    | SyncState
    | FindSaved
    | TellAccount
    | RestoreSaved
    | MoveState
    | MarkState
    | SettleSums
    | CountStep
    | TellVote
    | RollBack
    | AwaitNews
    | SaveIfDue
    | SaveNow
    | TellStraggler
    | TellRetry
    | AwaitAll
    | AwaitSaves
    | CloseRun
    | Leave
    | Answer
)
