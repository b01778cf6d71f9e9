"""The events and effects of the trainer machine. Pure.

An effect whose end matters names the events that report it. An `Answer` goes to the program: it says what the call that
brought the event returns or raises.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

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


class Vote(msgspec.Struct, frozen=True, array_like=True):
    """One worker's message to the others at the end of a step."""

    step: int
    newcomers: bool = False
    stop: bool = False
    #: How long the step took here, without the wait for the others.
    seconds: float = 0.0


# -- events: rounds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundSealed:
    """The coordinator sealed a round with this worker in it."""

    number: int
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class AskFailed:
    """No round was formed in time, or this worker was refused."""

    reason: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The training is over for all workers; `failed` if it did not succeed."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class RoundBroken:
    """The coordinator says that a round is over."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class NewcomersWait:
    """The number of workers that wait to join."""

    count: int


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """This worker is connected to the others of its round."""


@dataclass(frozen=True, slots=True)
class RoundLost:
    """A collective operation of the workers did not finish: one of them is gone, or the round is over.

    `touched` if a transfer had already changed this worker's state.
    """

    reason: str
    touched: bool = False


# -- events: the state -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharingAsked:
    """The state asks to be made equal on all workers."""


@dataclass(frozen=True, slots=True)
class SavedFound:
    """The newest checkpoint that this worker can read is of this step; -1 if there is none."""

    step: int


@dataclass(frozen=True, slots=True)
class AccountsHeard:
    """Every worker has told what it holds, in the order of ranks."""

    accounts: tuple[Account, ...]


@dataclass(frozen=True, slots=True)
class SavedRestored:
    """The state is now that of the checkpoint."""

    step: int


@dataclass(frozen=True, slots=True)
class SavedUnreadable:
    """The checkpoint that was there a moment ago cannot be read; the state is as it was."""


@dataclass(frozen=True, slots=True)
class StateMoved:
    """The transfer is complete; `step` is the number of steps of the state now."""

    step: int


@dataclass(frozen=True, slots=True)
class StateSynced:
    """The state's own `sync` has returned."""


# -- events: steps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundAsked:
    """The program asks for a round, and syncs the state itself."""


@dataclass(frozen=True, slots=True)
class SyncAsked:
    """The program asks for the state to be made equal in the round that it has."""


@dataclass(frozen=True, slots=True)
class StepAsked:
    """The program asks for its next step."""


@dataclass(frozen=True, slots=True)
class StepEntered:
    """The program begins the step."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """The program has done its part of the step; `last` if no other step follows."""

    seconds: float
    last: bool = False


@dataclass(frozen=True, slots=True)
class SumsSettled:
    """Every collective of the step has done its work."""


class Blame(enum.Enum):
    """Which side an error in a step belongs to, as far as its type tells."""

    #: The round is over; only our own collectives raise it.
    ROUND = "round"
    #: A collective raises such an error when another worker is gone, and a program for reasons of its own.
    UNCLEAR = "unclear"
    #: The program's own, or a request to end.
    OWN = "own"


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The step ended with an error."""

    blame: Blame
    reason: str


@dataclass(frozen=True, slots=True)
class NewsAwaited:
    """Something explains the error, or the time to wait for that is up; news comes before this event."""

    #: Whether a neighbour in the round has closed its connection.
    neighbour_gone: bool
    #: Whether the coordinator could be reached all the time.
    reachable: bool


@dataclass(frozen=True, slots=True)
class StepRolledBack:
    """The state is as it was before the step, unless it is not `whole`."""

    whole: bool


@dataclass(frozen=True, slots=True)
class VotesHeard:
    """Every worker has said how the step ended for it, in the order of ranks."""

    votes: tuple[Vote, ...]


# -- events: the end ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The program wants the training to end for all workers."""


@dataclass(frozen=True, slots=True)
class LeaveNoticed:
    """This worker must be gone soon."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoopLeft:
    """The program has left its loop; `failed` if by an error."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class AllLeft:
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


@dataclass(frozen=True, slots=True)
class AskRound:
    """Ask the coordinator for a round; ends in `RoundSealed`, `RunEnded` or `AskFailed`."""

    reason: str


@dataclass(frozen=True, slots=True)
class OpenRound:
    """Connect to the others of the round; ends in `RoundOpened` or `RoundLost`."""


@dataclass(frozen=True, slots=True)
class CloseRound:
    """Release everything that belongs to the round."""


@dataclass(frozen=True, slots=True)
class SyncState:
    """Let the state make itself equal on all workers; ends in `StateSynced` or `RoundLost`.

    By default the state asks for that by `SharingAsked` meanwhile.
    """


@dataclass(frozen=True, slots=True)
class FindSaved:
    """Look for the newest checkpoint; ends in `SavedFound`."""


@dataclass(frozen=True, slots=True)
class TellAccount:
    """Tell all workers what this one holds; ends in `AccountsHeard` or `RoundLost`."""

    account: Account


@dataclass(frozen=True, slots=True)
class RestoreSaved:
    """Restore the newest checkpoint; ends in `SavedRestored` or `SavedUnreadable`."""


@dataclass(frozen=True, slots=True)
class MoveState:
    """Send the state of the rank `source` to the ranks in `to`; ends in `StateMoved` or `RoundLost`."""

    source: int
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MarkState:
    """Keep what is needed to undo the step."""


@dataclass(frozen=True, slots=True)
class SettleSums:
    """Wait until the collectives of the step have done their work; ends in `SumsSettled` or `StepFailed`."""


@dataclass(frozen=True, slots=True)
class CountStep:
    """The step counts: advance the ledger."""


@dataclass(frozen=True, slots=True)
class TellVote:
    """Tell all workers how the step ended here; ends in `VotesHeard` or `RoundLost`."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class RollBack:
    """Undo the step; ends in `StepRolledBack`."""


@dataclass(frozen=True, slots=True)
class AwaitNews:
    """Wait, but not for long, for news or for the end of a neighbour's connection; ends in `NewsAwaited`."""


@dataclass(frozen=True, slots=True)
class SaveIfDue:
    """Save a checkpoint if one is due; in the background."""


@dataclass(frozen=True, slots=True)
class SaveNow:
    """Save a checkpoint and, with `wait`, wait until it is written or the time is up."""

    wait: bool = True


@dataclass(frozen=True, slots=True)
class TellStraggler:
    """Show which rank keeps the others waiting; None if none does. `news` if that was not known before."""

    slow: Slow | None
    news: bool


@dataclass(frozen=True, slots=True)
class TellRetry:
    """Report that a step failed for an unknown reason, and that it is tried again."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class AwaitAll:
    """Wait, but not for long, until the others have done their last step too; ends in `AllLeft`."""


@dataclass(frozen=True, slots=True)
class AwaitSaves:
    """Wait until every checkpoint that was begun is written."""


@dataclass(frozen=True, slots=True)
class CloseRun:
    """End the training for all workers; if it `failed`, no worker starts it again."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave for good."""

    reason: str


# -- answers to the program --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepGiven:
    """There is a round, all its workers have the same state, and the next step may begin."""


@dataclass(frozen=True, slots=True)
class StepBegun:
    """The step may change the state."""


@dataclass(frozen=True, slots=True)
class StepCounted:
    """The step counts, whatever happens to the others."""


@dataclass(frozen=True, slots=True)
class StepUndone:
    """The step was undone and will be done again."""


@dataclass(frozen=True, slots=True)
class ErrorStands:
    """The error is the program's own and is raised."""


@dataclass(frozen=True, slots=True)
class StateShared:
    """The state is the same on all workers of the round."""


@dataclass(frozen=True, slots=True)
class RoundFormed:
    """There is a round, and this worker is connected to the others."""


@dataclass(frozen=True, slots=True)
class RoundGone:
    """The round was over before the request was done."""

    reason: str


@dataclass(frozen=True, slots=True)
class TrainingOver:
    """All steps are done."""


@dataclass(frozen=True, slots=True)
class TooLate:
    """The training ended before this worker had any part in it."""

    reason: str


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """The training cannot continue; `ends_job` if it could not with a new worker either."""

    reason: str
    ends_job: bool = False


@dataclass(frozen=True, slots=True)
class MustLeave:
    """This worker leaves now; its checkpoint is saved."""

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
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
