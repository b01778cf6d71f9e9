"""The agent: one node's supervisor, as decisions. Pure.

What it decides: when workers are started, when they are stopped and how hard, whether to ask for another round, and
with what the agent ends. What it does not know: processes, sockets, signals' handlers, which rendezvous is in use.

                 started                  all exited 0
    STARTING ──────────────▶ RUNNING ─────────────────────▶ FINISHED ──run over──▶ ENDED
       ▲  ▲                    │ │ failure, round broken,       │                     ▲
       │  │                    │ │ run over, signal             │ round broken        │
       │  │                    ▼ ▼                              │                     │
       │  └── PAUSED ◀── STOPPING ── nothing left to do ────────┼─────────────────────┘
       └──────(back-off)───────┴────────────────────────────────┘

Workers that train in process (`holdfast.train`) outlive each other: one that fails is replaced while the others go on,
and a lost round only makes the agent ask for the next one. Then RUNNING stays RUNNING.

The rules:

1. Every way to lose a round takes one path: stop the workers, then start again (which asks for a round) or end.
2. Others are told before our own workers are stopped: of a failure so that they stop at once, of a signal so that they
   regroup without waiting for a lease.
3. With a rendezvous that counts restarts for the whole job, this machine never refuses one; with any other it counts.
4. A signal wins over everything that is under way; a second one makes the stop hard.
5. While workers are being started nobody can say yet whether any run. A signal or the end of the run that comes then is
   acted on when that is known: workers that run are stopped as ever, with all the words, before the agent ends.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

from holdfast.coordinator.messages import Cause
from holdfast.coordinator.sentences import spent
from holdfast.machine import Tick

#: POSIX numbers; a pure module does not import `signal`.
SIGTERM, SIGKILL = 15, 9


class Stage(enum.StrEnum):
    """Where an agent stands."""

    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSED = "paused"
    FINISHED = "finished"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class AgentRules:
    """How an agent behaves."""

    #: Restarts that this agent grants itself; None where the coordinator counts them for the whole job.
    max_restarts: int | None = None
    #: Whether a single worker that is lost may be replaced; pointless where the job has no restart to give.
    replaces: bool = True
    shutdown_timeout_s: float = 30.0
    exit_barrier_timeout_s: float = 300.0
    #: The pause before the first restart after a failure here; it doubles with each one up to the maximum.
    backoff_s: float = 0.0
    backoff_s_max: float = 60.0


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Take part."""


@dataclass(frozen=True, slots=True)
class WorkersStarted:
    """A round was agreed and its workers were started here; `round` is its number, where it has one."""

    round: int | None = None


@dataclass(frozen=True, slots=True)
class NotStarted:
    """No worker was started, because of an event that is in the inbox too."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker of this node failed."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker of this node failed, and its peers outlive it."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class RoundAgreed:
    """A round was agreed while the workers went on; the answer to `AskRound`."""


@dataclass(frozen=True, slots=True)
class WorkersFinished:
    """All workers of this node have exited with 0. `hosting`: the others need this process, however long they take."""

    hosting: bool = False


@dataclass(frozen=True, slots=True)
class WorkersStopped:
    """No worker of this node runs any more; the answer to `StopWorkers`. `cause`: what came to light meanwhile."""

    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class RoundLost:
    """The round, told by its number where it has one, is over for a reason elsewhere, or newcomers wait."""

    reason: str
    round: int | None = None
    #: Whether the workers here outlive the round.
    survived: bool = False


@dataclass(frozen=True, slots=True)
class RunOver:
    """The run is over for everybody."""

    reason: str
    failed: bool
    cause: Cause | None = None
    #: Whether it failed too often without progress.
    crash_loop: bool = False


@dataclass(frozen=True, slots=True)
class Signalled:
    """This agent was sent a signal that means: stop."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class SignalPassing:
    """This agent was sent a signal that is meant for the workers."""

    number: int


AgentEvent = (
    Begin
    | SignalPassing
    | WorkersStarted
    | NotStarted
    | WorkerFailed
    | WorkerLost
    | RoundAgreed
    | WorkersFinished
    | WorkersStopped
    | RoundLost
    | RunOver
    | Signalled
    | Tick
)

# -- effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Ask for a round and start its workers; answered by `WorkersStarted` or `NotStarted`."""

    cause: Cause | None


@dataclass(frozen=True, slots=True)
class ReplaceWorkers:
    """Start new workers in the place of those that failed."""


@dataclass(frozen=True, slots=True)
class AskRound:
    """Ask for a round while the workers go on; answered by `RoundAgreed`."""

    reason: str


@dataclass(frozen=True, slots=True)
class TellLoss:
    """Tell that a worker failed and is being replaced."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Stop the workers: the signal, the grace, SIGKILL; answered by `WorkersStopped`. Sent again, it is harder."""

    number: int
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Pass a signal on to the workers; it does not mean a stop."""

    number: int


@dataclass(frozen=True, slots=True)
class TellFailure:
    """Tell everybody that this node cannot go on with the round."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class TellFinished:
    """Tell that all workers here have finished, and wait for the others."""


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """Leave politely."""

    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The agent is done."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Outcome:
    """With what an agent ends: success, a failure and its cause, or the signal that ended it."""

    succeeded: bool
    reason: str
    cause: Cause | None = None
    signal: int = 0
    crash_loop: bool = False


AgentEffect = (
    StartWorkers
    | ReplaceWorkers
    | AskRound
    | StopWorkers
    | SignalWorkers
    | TellFailure
    | TellLoss
    | TellFinished
    | LeaveRun
    | End
)


class AgentMachine:
    """Decides for one agent; see the module's opening."""

    def __init__(self, rules: AgentRules) -> None:
        self.rules = rules
        self.stage = Stage.IDLE
        #: Failures here that were answered with a restart.
        self.restarts = 0
        self._cause: Cause | None = None
        #: Set while stopping for good: what the agent ends with once nothing runs.
        self._ending: Outcome | None = None
        #: Signals for workers that may run already, though we have not been told so yet.
        self._early: list[int] = []
        #: A round that was lost while its workers were being started.
        self._lost: RoundLost | None = None
        #: What else came meanwhile, in its order.
        self._held: list[Signalled | RunOver] = []
        self._left = False
        #: Whether a round is being asked for while the workers go on.
        self.regrouping = False
        self._resume_at: float | None = None
        self._barrier_ends: float | None = None
        self._out: list[AgentEffect] = []

    # -- the contract ----------------------------------------------------------------------------------------

    def handle(self, event: AgentEvent, now: float) -> list[AgentEffect]:
        """Decide what one event means."""
        if self.stage is not Stage.ENDED:
            match event:
                case Begin():
                    self._start()
                case WorkersStarted():
                    self._on_started(event)
                case NotStarted():
                    if self.stage is Stage.STARTING:
                        self.stage = Stage.IDLE  # STARTING -> IDLE
                        self._take_held()
                case WorkerFailed():
                    self._on_failure(event.cause)
                case WorkerLost():
                    self._on_lost_worker(event.cause)
                case RoundAgreed():
                    self._on_agreed()
                case WorkersFinished():
                    self._on_finished(event, now)
                case WorkersStopped():
                    self._on_stopped(event, now)
                case RoundLost():
                    self._on_round_lost(event)
                case RunOver() | Signalled():
                    if self.stage is Stage.STARTING:
                        self._held.append(event)
                    else:
                        self._on_end(event)
                case SignalPassing():
                    if self.stage is Stage.RUNNING:
                        self._out.append(SignalWorkers(event.number))
                    elif self.stage is Stage.STARTING:
                        self._early.append(event.number)
                case Tick():
                    self._on_time(now)
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Say when time alone changes something."""
        when = self._resume_at if self._resume_at is not None else self._barrier_ends
        return None if when == float("inf") else when

    def check(self) -> None:
        """Assert every invariant."""
        assert (self._resume_at is not None) == (self.stage is Stage.PAUSED)
        assert (self._barrier_ends is not None) == (self.stage is Stage.FINISHED)
        assert not self.regrouping or self.stage is not Stage.STARTING, "asking for a round twice"
        assert not self._held or self.stage is Stage.STARTING, "something was held and never acted on"
        if self.rules.max_restarts is not None:
            assert self.restarts <= self.rules.max_restarts, "the restart budget is overdrawn"

    def snapshot(self) -> dict[str, Any]:
        """Describe the agent as plain data."""
        return {"stage": self.stage.value, "restarts": self.restarts, "ending": self._ending is not None}

    # -- events ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.stage = Stage.STARTING
        self.regrouping = False
        self._resume_at = None
        cause, self._cause = self._cause, None
        self._early = []
        self._out.append(StartWorkers(cause))

    def _take_held(self) -> None:
        held, self._held = self._held, []
        for event in held:
            if self.stage is not Stage.ENDED:
                self._on_end(event)

    def _on_started(self, event: WorkersStarted) -> None:
        self.stage = Stage.RUNNING  # STARTING -> RUNNING
        lost, self._lost = self._lost, None
        if lost is not None and lost.round == event.round:
            self._stop(SIGTERM, lost.reason)
        else:
            self._out += [SignalWorkers(number) for number in self._early]
        self._take_held()

    def _on_failure(self, cause: Cause) -> None:
        if self.stage is not Stage.RUNNING:
            return  # a worker that fails while we stop it proves nothing
        limit = self.rules.max_restarts
        if limit is not None and self.restarts >= limit:
            self._ending = Outcome(succeeded=False, reason=f"{cause.sentence}; {spent(limit)}", cause=cause)
        else:
            self.restarts += 1
        self._cause = cause
        self._out.append(TellFailure(cause))
        self._stop(SIGTERM, cause.sentence)

    def _on_lost_worker(self, cause: Cause) -> None:
        limit = self.rules.max_restarts
        spent_all = not self.rules.replaces or (limit is not None and self.restarts >= limit)
        if self.stage is not Stage.RUNNING or spent_all:
            self._on_failure(cause)
            return
        self.restarts += 1
        self._out += [TellLoss(cause), ReplaceWorkers()]

    def _on_agreed(self) -> None:
        self.regrouping = False
        if self.stage is Stage.FINISHED:
            self._out.append(TellFinished())  # what was told before was said of a round that is over

    def _on_finished(self, event: WorkersFinished, now: float) -> None:
        if self.stage is Stage.RUNNING:
            self.stage = Stage.FINISHED
            self._barrier_ends = float("inf") if event.hosting else now + self.rules.exit_barrier_timeout_s
            self._out.append(TellFinished())

    def _on_stopped(self, event: WorkersStopped, now: float) -> None:
        if self.stage is not Stage.STOPPING:
            return
        if event.cause is not None and self._cause is not None and self._cause.victim:
            self._cause = event.cause
        if self._ending is not None:
            self._end(self._ending)
            return
        rules = self.rules
        if self._cause is not None and rules.backoff_s > 0:
            self.stage = Stage.PAUSED
            self._resume_at = now + min(rules.backoff_s * 2 ** max(self.restarts - 1, 0), rules.backoff_s_max)
        else:
            self._start()

    def _on_round_lost(self, event: RoundLost) -> None:
        if event.survived and self.stage in (Stage.RUNNING, Stage.FINISHED):
            if not self.regrouping:
                self.regrouping = True
                self._out.append(AskRound(event.reason))
        elif self.stage is Stage.RUNNING:
            self._stop(SIGTERM, event.reason)
        elif self.stage is Stage.STARTING:
            # Either the round whose workers are being started just now, or a late word about the one before.
            self._lost = event
        elif self.stage is Stage.FINISHED:
            # The others start again, and so must we: there is nothing left to stop.
            self._barrier_ends = None
            self._start()

    def _on_end(self, event: RunOver | Signalled) -> None:
        if isinstance(event, Signalled):
            self._on_signal(event)
        else:
            self._on_run_over(event)

    def _on_run_over(self, event: RunOver) -> None:
        outcome = Outcome(
            succeeded=not event.failed, reason=event.reason, cause=event.cause, crash_loop=event.crash_loop
        )
        if self.stage is Stage.RUNNING:
            # Closed by somebody while our workers still had work to do: that is no success of theirs.
            self._ending = replace(outcome, succeeded=False)
            self._stop(SIGTERM, event.reason)
        elif self.stage is Stage.STOPPING:
            self._ending = self._ending or outcome
        else:
            self._end(outcome)

    def _on_signal(self, event: Signalled) -> None:
        reason = f"received {event.name}"
        if self.stage is Stage.STOPPING and self._ending is not None and self._ending.signal:
            self._stop(SIGKILL, f"{reason} again")
            return
        if not self._left:
            self._left = True
            self._out.append(LeaveRun(reason))
        outcome = Outcome(succeeded=False, reason=reason, signal=event.number)
        if self.stage in (Stage.RUNNING, Stage.STOPPING):
            self._ending = outcome
            self._stop(event.number, reason)
        elif self.stage is Stage.FINISHED:
            self._end(Outcome(succeeded=True, reason=f"finished; {reason} while waiting for the others"))
        else:
            self._end(outcome)

    def _on_time(self, now: float) -> None:
        if self._resume_at is not None and now >= self._resume_at:
            self._start()
        elif self._barrier_ends is not None and now >= self._barrier_ends:
            limit = self.rules.exit_barrier_timeout_s
            self._end(Outcome(succeeded=True, reason=f"finished; the others did not within {limit:g} s"))

    # -- small things ----------------------------------------------------------------------------------------

    def _stop(self, number: int, reason: str) -> None:
        self.stage = Stage.STOPPING
        grace_s = 0.0 if number == SIGKILL else self.rules.shutdown_timeout_s
        self._out.append(StopWorkers(number, grace_s, reason))

    def _end(self, outcome: Outcome) -> None:
        self.stage = Stage.ENDED
        self._resume_at = self._barrier_ends = None
        self._out.append(End(outcome))
