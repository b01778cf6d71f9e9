"""The agent: one node's supervisor, as decisions. Pure.

It decides when workers are started, when they are stopped and how hard, whether to ask for another round, and how the
agent ends. It knows nothing of processes, sockets, signal handlers or which rendezvous is in use. Events and effects
about rounds are the member's own.

                 sealed and preloaded        all exited 0
     ASKING ─────────────▶ RUNNING ─────────────────────▶ FINISHED ──run over──▶ ENDED
      ▲  ▲                   │ │ failure, round broken,       │                    ▲
      │  │                   │ │ run over, signal             │ round broken       │
      │  │                   ▼ ▼                              │                    │
      │  └── PAUSED ◀── STOPPING ── nothing left to do ───────┼────────────────────┘
      └─────(back-off)────────┴───────────────────────────────┘

PRELOADING comes before ASKING where asking at once would break into a round that runs. SEATED comes after it where the
round is sealed while the workers' imports are under way: to wait for their end is quicker than to begin them again in
every worker. Imports that begin while workers run hold up only the next start.

A node whose workers cannot talk to those of another one stands APART: it leaves, so that the others go on, and ends
once it can talk to them; then it is started again and joins as a new node.

Workers that train in process (`holdfast.train`) survive each other: one that fails is replaced while the others run,
and a broken round only makes the agent ask for the next one. Then RUNNING stays RUNNING.

The rules:

1. Every way to lose a round takes one path: stop the workers, then ask for the next round, or end.
2. Other nodes hear of it before our own workers stop: of a failure so that they stop at once, of a signal so that they
   regroup without waiting for a lease.
3. With a rendezvous that counts restarts for the whole job, this machine never refuses one; with any other it counts.
   A failure that no restart can mend is never answered with one: the answer to the next ask is the end of the run.
4. A signal wins over everything else; a second one makes the stop hard.
5. Workers run from the moment `StartWorkers` is returned: its driver starts them before it hands over the next
   event. So there is no time in which it is not known whether workers run.
6. Every ask is answered: by a place, by the end of the run, or by `AskFailed` when its time is up. An answer may lie in
   the inbox while the next ask is made: it is known by its number, and does not count.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from msgspec import Struct

from holdfast.coordinator.messages import Cause, Place
from holdfast.coordinator.sentences import CANNOT_HELP, spent
from holdfast.machine import Tick
from holdfast.rendezvous.events import AskFailed, Fail, Finish, Leave, Replace, RoundBroken, RoundSealed, RunEnded

#: POSIX numbers; a pure module does not import `signal`.
SIGTERM, SIGKILL = 15, 9
#: How long workers have after the first signal, before SIGKILL.
SHUTDOWN_TIMEOUT_S = 30.0
#: How long an agent whose workers have finished waits for those of the other nodes.
EXIT_BARRIER_TIMEOUT_S = 300.0
BACKOFF_S_MAX = 60.0
#: How long a node stands apart from others that it cannot talk to, before it gives up.
APART_TIMEOUT_S = 600.0


class Stage(enum.StrEnum):
    """The stage of an agent."""

    IDLE = "idle"
    PRELOADING = "preloading"
    ASKING = "asking"
    SEATED = "seated"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSED = "paused"
    APART = "apart"
    FINISHED = "finished"
    ENDED = "ended"


class AgentRules(Struct, frozen=True):
    """How an agent behaves."""

    #: Restarts that this agent grants itself; None if the coordinator counts them for the whole job.
    max_restarts: int | None = None
    #: Whether a single worker that failed may be replaced; not if the job has no restarts.
    replaces: bool = True
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S
    exit_barrier_timeout_s: float = EXIT_BARRIER_TIMEOUT_S
    #: The pause before the first restart after a failure here; it doubles with each one up to the maximum.
    backoff_s: float = 0.0
    backoff_s_max: float = BACKOFF_S_MAX
    apart_timeout_s: float = APART_TIMEOUT_S


# -- events; those of rounds are the member's effects --------------------------------------------------------


class Begin(Struct, frozen=True):
    """Take part.

    `preloading`: the workers' imports are still under way. `busy`: a round runs that an ask would break.
    """

    preloading: bool = False
    busy: bool = False


class PreloadBegun(Struct, frozen=True):
    """The imports for the next workers have begun, beside those that run."""


class Preloaded(Struct, frozen=True):
    """The workers' imports are done, or given up: workers can be started."""


class TrainsInProcess(Struct, frozen=True):
    """A worker has said that it trains in process: the workers outlive each other and the round."""


class WorkerFailed(Struct, frozen=True):
    """A worker of this node failed."""

    cause: Cause


class WorkersFinished(Struct, frozen=True):
    """All workers of this node have exited with 0. `hosting`: the others need this process, however long they take."""

    hosting: bool = False


class WorkersStopped(Struct, frozen=True):
    """No worker of this node runs any more; the answer to `StopWorkers`. `cause`: what came to light meanwhile."""

    cause: Cause | None = None


class Parted(Struct, frozen=True):
    """The workers here cannot talk to those of another node: the others are better off without this one."""

    reason: str


class LinkMended(Struct, frozen=True):
    """This node can talk to the others again; the answer to `AwaitLink`."""


class Signalled(Struct, frozen=True):
    """This agent received a signal that ends it."""

    number: int
    name: str


class SignalPassing(Struct, frozen=True):
    """This agent received a signal that is meant for the workers."""

    number: int


RoundEvent = RoundSealed | RoundBroken | RunEnded | AskFailed
AgentEvent = (
    Begin
    | PreloadBegun
    | Preloaded
    | TrainsInProcess
    | WorkerFailed
    | WorkersFinished
    | WorkersStopped
    | RoundEvent
    | Parted
    | LinkMended
    | Signalled
    | SignalPassing
    | Tick
)

# -- effects; `Fail`, `Replace`, `Finish` and `Leave` are the member's events -----------------------------------


class AwaitPreload(Struct, frozen=True):
    """Say that the imports are waited for; `busy`: before a round is asked for, since one runs that need not wait."""

    busy: bool = False


@dataclass(frozen=True, slots=True)
class AskRound:
    """Ask for a round; answered by `RoundSealed` with this number, `RunEnded` or `AskFailed`.

    `aside`: while the workers keep running; `reason` is then why their round is over.
    """

    cause: Cause | None = None
    aside: bool = False
    reason: str = field(default="", compare=False)
    number: int = field(default=0, compare=False)


class StartWorkers(Struct, frozen=True):
    """Start the workers of a round at this place; `restarts` is what the job has used of its budget."""

    place: Place
    restarts: int = 0


class TakePlace(Struct, frozen=True):
    """Workers that survived a round are in the next one, at this place."""

    place: Place


class ReplaceWorkers(Struct, frozen=True):
    """Start new workers in the place of those that failed."""

    restarts: int = 0


class StopWorkers(Struct, frozen=True):
    """Stop the workers: the signal, the grace, SIGKILL; answered by `WorkersStopped`. Sent again, it is harder."""

    number: int
    grace_s: float
    reason: str


class SignalWorkers(Struct, frozen=True):
    """Forward a signal to the workers; it does not mean a stop."""

    number: int


class AwaitLink(Struct, frozen=True):
    """Ask the hosts that this node cannot talk to until they answer; then `LinkMended` comes."""

    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an agent ends: with success, with a failure and its cause, or by the signal that ended it."""

    succeeded: bool
    reason: str
    cause: Cause | None = None
    signal: int = 0
    crash_loop: bool = False
    #: Set if no round was formed: the answer to the last ask.
    unanswered: AskFailed | RunEnded | None = None
    #: Whether this node stood apart, and is to join the run again.
    rejoins: bool = False


class End(Struct, frozen=True):
    """The agent is done."""

    outcome: Outcome


AgentEffect = (
    AwaitPreload
    | AskRound
    | StartWorkers
    | TakePlace
    | ReplaceWorkers
    | StopWorkers
    | SignalWorkers
    | AwaitLink
    | Fail
    | Replace
    | Finish
    | Leave
    | End
)

#: Where workers run, or have run to their end.
_IN_ROUND = frozenset({Stage.RUNNING, Stage.FINISHED})


class AgentMachine:
    """Decides for one agent; see the module's opening."""

    def __init__(self, rules: AgentRules) -> None:
        self.rules = rules
        self.stage = Stage.IDLE
        #: The place that workers have or are about to be given; None while a round is asked for.
        self.place: Place | None = None
        #: How many rounds were asked for; only the answer to the last ask counts.
        self.asks = 0
        #: Failures here that were answered with a restart or a replacement.
        self.restarts = 0
        #: What the job had used before, beyond the failures here.
        self._restarts_elsewhere = 0
        self._preloading = False
        #: Whether the workers survive each other and the round.
        self._in_process = False
        #: Whether a round is being asked for while the workers keep running.
        self._regrouping = False
        #: What ended the last round here; sent with the next ask.
        self._cause: Cause | None = None
        #: Set while stopping for good: how the agent ends once nothing runs.
        self._ending: Outcome | None = None
        self._left = False
        #: Why this node stands apart, or is about to.
        self._parted = ""
        self._apart_ends: float | None = None
        self._resume_at: float | None = None
        self._barrier_ends: float | None = None
        self._out: list[AgentEffect] = []

    # -- the contract ----------------------------------------------------------------------------------------

    def handle(self, event: AgentEvent, now: float) -> list[AgentEffect]:
        """Decide what one event means."""
        if self.stage is not Stage.ENDED:
            self._on_event(event, now)
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Say when time alone changes something."""
        for when in (self._resume_at, self._barrier_ends, self._apart_ends):
            if when is not None:
                return None if when == inf else when
        return None

    def check(self) -> None:
        """Assert every invariant."""
        assert (self._resume_at is not None) == (self.stage is Stage.PAUSED)
        assert (self._barrier_ends is not None) == (self.stage is Stage.FINISHED)
        assert (self._apart_ends is not None) == (self.stage is Stage.APART)
        assert not self._regrouping or self._in_process, "a round was asked for beside workers that do not outlive it"
        assert self.stage is not Stage.ASKING or not self._regrouping, "asking for a round twice"
        assert self.place is not None or self.stage not in {*_IN_ROUND, Stage.SEATED}, f"{self.stage} without a place"
        assert self.stage is not Stage.SEATED or self._preloading, "a place is not taken although nothing is waited for"
        if self.rules.max_restarts is not None:
            assert self.restarts <= self.rules.max_restarts, "the restart budget is overdrawn"

    def snapshot(self) -> dict[str, Any]:
        """Describe the agent as plain data."""
        return {
            "stage": self.stage.value,
            "round": self.place.round.number if self.place is not None else 0,
            "restarts": self.restarts,
            "ending": self._ending is not None,
        }

    # -- events ----------------------------------------------------------------------------------------------

    def _on_event(self, event: AgentEvent, now: float) -> None:
        match event:
            case Begin():
                self._on_begin(event)
            case PreloadBegun():
                self._preloading = True
            case Preloaded():
                self._on_preloaded()
            case TrainsInProcess():
                self._in_process = self.stage is Stage.RUNNING
            case RoundSealed():
                if event.number == self.asks:  # otherwise the answer to an earlier ask
                    self._on_sealed(event.place)
            case RoundBroken():
                self._on_broken(event)
            case RunEnded(rejected=True) | AskFailed():
                self._on_unanswered(event)
            case RunEnded():
                self._on_run_ended(event)
            case WorkerFailed():
                self._on_failure(event.cause)
            case WorkersFinished():
                self._on_finished(event, now)
            case WorkersStopped():
                self._on_stopped(event, now)
            case Parted() | LinkMended():
                self._on_link(event)
            case Signalled():
                self._on_signal(event)
            case SignalPassing():
                if self.stage is Stage.RUNNING:
                    self._out.append(SignalWorkers(event.number))
            case Tick():
                self._on_time(now)

    def _on_begin(self, event: Begin) -> None:
        self._preloading = event.preloading
        if event.preloading and event.busy:
            self.stage = Stage.PRELOADING  # IDLE -> PRELOADING
            self._out.append(AwaitPreload(busy=True))
        else:
            self._ask()

    def _on_preloaded(self) -> None:
        self._preloading = False
        if self.stage is Stage.PRELOADING:
            self._ask()
        elif self.stage is Stage.SEATED:
            self._start()

    def _on_sealed(self, place: Place) -> None:
        if self.stage is Stage.ASKING:
            self.place = place
            counted_elsewhere = self.rules.max_restarts is None
            self._restarts_elsewhere = place.restarts_used - self.restarts if counted_elsewhere else 0
            if self._preloading:
                self.stage = Stage.SEATED  # ASKING -> SEATED
                self._out.append(AwaitPreload())
            else:
                self._start()
        elif self._regrouping and self.stage in _IN_ROUND:
            self._regrouping = False
            self.place = place
            self._out.append(TakePlace(place))
            if self.stage is Stage.FINISHED:
                self._out.append(Finish())  # earlier messages were about a round that is over
        elif self.stage in (Stage.STOPPING, Stage.PAUSED) and not (self._cause is not None and self._cause.ends_job):
            self._cause = None  # it ended the round before; the one just sealed has no part in it

    def _on_broken(self, event: RoundBroken) -> None:
        if self.place is None or event.place.round != self.place.round:
            return  # a late message about an earlier round
        if self._in_process and self.stage in _IN_ROUND:
            if not self._regrouping:
                self._regrouping = True
                self.asks += 1
                self._out.append(AskRound(aside=True, reason=event.reason, number=self.asks))
        elif self.stage is Stage.RUNNING:
            self._stop(SIGTERM, event.reason)
        elif self.stage in (Stage.SEATED, Stage.FINISHED):
            self._ask()  # there is nothing to stop

    def _on_unanswered(self, event: AskFailed | RunEnded) -> None:
        outcome = Outcome(succeeded=False, reason=event.reason, unanswered=event)
        if self.stage is Stage.ASKING:
            self._end(outcome)
        elif self._regrouping and self.stage is Stage.RUNNING:
            self._ending = outcome
            self._stop(SIGTERM, event.reason)
        elif self._regrouping and self.stage is Stage.FINISHED:
            self._end(outcome)
        else:
            self._on_run_ended(RunEnded(event.reason, failed=True))

    def _on_run_ended(self, event: RunEnded) -> None:
        outcome = Outcome(
            succeeded=not event.failed, reason=event.reason, cause=event.cause, crash_loop=event.crash_loop
        )
        if self.stage is Stage.RUNNING:
            # Another node closed the run while our workers still had work to do: that is no success of theirs.
            self._ending = replace(outcome, succeeded=False)
            self._stop(SIGTERM, event.reason)
        elif self.stage is Stage.STOPPING:
            self._ending = self._ending or outcome
        else:
            self._end(outcome)

    def _on_failure(self, cause: Cause) -> None:
        if self.stage is not Stage.RUNNING:
            return  # a worker that fails while we stop it proves nothing
        limit = self.rules.max_restarts
        is_spent = limit is not None and self.restarts >= limit
        if self._in_process and self.rules.replaces and not is_spent and not cause.ends_job:
            self.restarts += 1
            self._out += [Replace(cause), ReplaceWorkers(self._restarts_used())]
            return
        if limit is not None and (is_spent or cause.ends_job):
            why = CANNOT_HELP if cause.ends_job else spent(limit)
            self._ending = Outcome(succeeded=False, reason=f"{cause.sentence}; {why}", cause=cause)
        elif not cause.ends_job:
            self.restarts += 1
        self._cause = cause
        self._out.append(Fail(cause))
        self._stop(SIGTERM, cause.sentence)

    def _on_finished(self, event: WorkersFinished, now: float) -> None:
        if self.stage is Stage.RUNNING:
            self.stage = Stage.FINISHED
            self._barrier_ends = float("inf") if event.hosting else now + self.rules.exit_barrier_timeout_s
            self._out.append(Finish())

    def _on_stopped(self, event: WorkersStopped, now: float) -> None:
        if self.stage is not Stage.STOPPING:
            return
        found = event.cause
        if found is not None and self._cause is not None and (self._cause.victim or found.ends_job):
            self._cause = found
        rules = self.rules
        if self._ending is not None:
            self._end(self._ending)
        elif self._parted:
            self.stage = Stage.APART  # STOPPING -> APART
            self._apart_ends = now + rules.apart_timeout_s
            self._out.append(AwaitLink(self._parted))
        elif self._cause is not None and rules.backoff_s > 0:
            self.stage = Stage.PAUSED
            self._resume_at = now + min(rules.backoff_s * 2 ** max(self.restarts - 1, 0), rules.backoff_s_max)
        else:
            self._ask()

    def _on_link(self, event: Parted | LinkMended) -> None:
        if isinstance(event, LinkMended):
            if self.stage is Stage.APART:
                self._end(Outcome(succeeded=False, reason="it can talk to the others again", rejoins=True))
        elif self.stage is Stage.RUNNING:
            self._parted, self._left = event.reason, True
            self._out.append(Leave(event.reason))
            self._stop(SIGTERM, event.reason)

    def _on_signal(self, event: Signalled) -> None:
        reason = f"received {event.name}"
        if self.stage is Stage.STOPPING and self._ending is not None and self._ending.signal:
            self._stop(SIGKILL, f"{reason} again")
            return
        if not self._left:
            self._left = True
            self._out.append(Leave(reason))
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
            self._ask()
        elif self._barrier_ends is not None and now >= self._barrier_ends:
            limit = self.rules.exit_barrier_timeout_s
            self._end(Outcome(succeeded=True, reason=f"finished; the others did not within {limit:g} s"))
        elif self._apart_ends is not None and now >= self._apart_ends:
            reason = f"{self._parted}; still so after {self.rules.apart_timeout_s:g} s, mend the network between them"
            self._end(Outcome(succeeded=False, reason=reason))

    # -- small things ----------------------------------------------------------------------------------------

    def _ask(self) -> None:
        self.stage = Stage.ASKING
        self.place = None
        self._in_process = self._regrouping = False
        self._resume_at = self._barrier_ends = None
        cause, self._cause = self._cause, None
        self.asks += 1
        self._out.append(AskRound(cause, number=self.asks))

    def _start(self) -> None:
        assert self.place is not None
        self.stage = Stage.RUNNING
        self._out.append(StartWorkers(self.place, self._restarts_used()))

    def _restarts_used(self) -> int:
        """How many restarts the job has used, as far as this node knows."""
        return self._restarts_elsewhere + self.restarts

    def _stop(self, number: int, reason: str) -> None:
        self.stage = Stage.STOPPING
        self._regrouping = False
        grace_s = 0.0 if number == SIGKILL else self.rules.shutdown_timeout_s
        self._out.append(StopWorkers(number, grace_s, reason))

    def _end(self, outcome: Outcome) -> None:
        self.stage = Stage.ENDED
        self._regrouping = False
        self._resume_at = self._barrier_ends = self._apart_ends = None
        self._out.append(End(outcome))
