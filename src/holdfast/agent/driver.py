"""The agent's driver: one loop that turns input into events, and the machine's effects into calls. No decisions.

The loop reads an inbox, into which signal handlers and the source of rounds put messages, looks at the workers, and
hands each event to the machine. Everything that it calls is passed in: the source of rounds, and the workers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from holdfast.agent.agent_facts import AgentFacts, Observers
from holdfast.agent.api import RunResult, WorkerGroup, WorkerState
from holdfast.agent.inbox import Inbox
from holdfast.agent.machine import (
    AgentEffect,
    AgentEvent,
    AgentMachine,
    AgentRules,
    AskRound,
    AwaitLink,
    AwaitPreload,
    Begin,
    End,
    Outcome,
    PreloadBegun,
    Preloaded,
    ReplaceWorkers,
    Signalled,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    TakePlace,
    TrainsInProcess,
    WorkerFailed,
    WorkersFinished,
    WorkersStopped,
)
from holdfast.agent.peer_calls import PeerCalls
from holdfast.agent.round_source import Coordinated, RoundSource
from holdfast.agent.signals import handled
from holdfast.coordinator.messages import Cause, Place
from holdfast.errors import RendezvousGracefulExitError, SignalError
from holdfast.facts import Fact, facts
from holdfast.health import LastProgress
from holdfast.machine import Tick
from holdfast.rendezvous.events import (
    AskFailed,
    CoordinatorAway,
    CoordinatorBack,
    FactHeard,
    Fail,
    Finish,
    Leave,
    MemberEffect,
    PeerCalled,
    PeerReplied,
    Replace,
    RoundBroken,
    RoundSealed,
    RunEnded,
)

#: How often the loop runs for a health server that does not say how often it checks.
LOOK_S = 1.0

WorkersEvent = PreloadBegun | Preloaded | WorkerFailed | WorkersFinished | WorkersStopped


class Workers(Protocol):
    """What an agent supervises: how its workers are started, watched and stopped.

    Methods with a body are optional: for workers that preload nothing and do not survive each other.
    """

    #: How the workers ended, once they have.
    result: RunResult
    #: Whether `close` handles signals by itself; if not, a signal raises inside it.
    heeds_signals: bool = False

    @property
    def preloads(self) -> bool:
        """Whether what workers import is imported once, for all of them to be forked from there."""
        return False

    def preload(self, *, at_once: bool) -> bool:
        """Begin these imports, now or when there is time for them; says whether the first workers wait for them."""
        del at_once
        return False

    def begin(self) -> dict[str, Any]:
        """Prepare before the agent waits for nodes; return details to publish, such as where logs are."""
        return {}

    def tell_preload(self, *, busy: bool) -> None:
        """Tell the user that the agent waits for imports."""
        del busy

    def start(self, place: Place, restarts: int) -> dict[str, Any]:
        """Start the workers of a round; return details to publish."""

    def move(self, place: Place) -> None:
        """Record that the workers, which outlived a round, are in the next one."""

    def replace(self, restarts: int) -> tuple[list[int], str]:
        """Start new workers in the place of those that failed; returns their ranks and why they failed."""
        del restarts
        return [], ""

    def trains_in_process(self) -> bool:
        """Say, once for each start, that a worker has begun to train in process."""
        return False

    def look(self, now: float) -> WorkersEvent | None:
        """Look at the workers without waiting, and return what has happened."""

    def failures_told(self) -> list[dict[str, Any]]:
        """Describe the failures that `look` has just reported."""

    def wakeup(self) -> float | None:
        """Say when to look in any case."""

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable when there is something to look at."""
        return ()

    def stop(self, number: int, grace_s: float) -> None:
        """Begin to stop the workers; a second call stops them harder. `look` reports the end."""

    def send(self, number: int) -> None:
        """Pass a signal on to the workers."""
        del number

    def await_link(self) -> bool:
        """Ask the hosts that this node cannot talk to until they answer, in the background; says whether it can.

        The inbox gets `LinkMended` then.
        """
        return False

    def close(self, number: int) -> None:
        """Stop whatever still runs, with this signal, and release everything."""


class Serving(Protocol):
    """A health server."""

    @property
    def look_every_s(self) -> float | None:
        """How often it checks that the agent's loop makes progress, if it says so."""

    def start(self) -> None:
        """Begin to answer."""

    def stop(self) -> None:
        """Stop answering."""


def as_event(result: RunResult, cause: Callable[[RunResult], Cause]) -> WorkersEvent | None:
    """Turn what was seen of the workers into an event, or None if they keep running."""
    match result.state:
        case WorkerState.HEALTHY:
            return None
        case WorkerState.SUCCEEDED:
            return WorkersFinished()
        case WorkerState.FAILED | WorkerState.UNHEALTHY:
            return WorkerFailed(cause(result))
    raise RuntimeError(f"the workers are in state {result.state.name}, which an agent cannot go on from")


class Agent:
    """Runs one node's workers through rounds until the run is over here."""

    def __init__(
        self,
        group: WorkerGroup,
        rounds: RoundSource,
        rules: AgentRules,
        inbox: Inbox[AgentEvent],
        *,
        signals_to_handle: str | None = None,
        forward_signals: tuple[signal.Signals, ...] = (),
    ) -> None:
        self.group = group
        self.rounds = rounds
        self._inbox = inbox
        self._signals = (signals_to_handle, forward_signals)
        self.machine = AgentMachine(rules)
        self.facts = AgentFacts(group, time.monotonic)
        self.observers = Observers(group.spec, rounds.node)
        #: When the loop last made progress; a health server reads it.
        self.pulse = LastProgress()
        self.calls = PeerCalls(rounds) if isinstance(rounds, Coordinated) else None
        #: Set by the owner before `run`, where there is a health server.
        self.health: Serving | None = None
        #: How the agent ended, and why, once it has.
        self.outcome: Outcome | None = None
        self._is_blocking = False
        rounds.listen(self._hear, self._blocking)

    def supervise(self, workers: Workers) -> None:
        """Set what is supervised; workers may need parts of the agent, so they come after it."""
        self._workers = workers

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self, drive: Callable[[], RunResult] | None = None) -> RunResult:
        """Take part until the run is over here; `drive` may wrap the loop.

        Raises `SignalError` if a signal ended it, and the rendezvous's error if no round was formed.
        """
        # The handlers stay until everything is given back: a signal that comes while workers are being stopped must not
        # end this process before them.
        with handled(self._inbox, *self._signals, lambda: self._is_blocking):
            death_sig = signal.SIGTERM
            try:
                with self.observers, self._served():
                    self.facts.begins(self._workers.begin())
                    return (drive or self.drive)()
            except RendezvousGracefulExitError as left:
                facts.publish(Fact("agent_left", str(left)))
                return RunResult(WorkerState.STOPPED)
            except SignalError as exception:
                death_sig = exception.sigval
                raise
            finally:
                self._is_blocking = not self._workers.heeds_signals
                self._workers.close(death_sig)
                self._is_blocking = False

    def drive(self) -> RunResult:
        """Hand events to the machine and carry out what it answers, until it ends."""
        busy = self._workers.preloads and self.rounds.would_disturb()
        event: AgentEvent = Begin(self._workers.preload(at_once=busy), busy=busy)
        while True:
            for effect in self.machine.handle(event, time.monotonic()):
                self._perform(effect)
            if self.outcome is not None:
                return self._conclude(self.outcome)
            event = self._next_event()

    def _next_event(self) -> AgentEvent:
        """Wait for the next thing that happens."""
        while True:
            self.pulse.beat()
            if self._workers.trains_in_process():
                return TrainsInProcess()
            if (event := self._inbox.take()) is not None:
                if isinstance(event, RoundSealed) and event.number == self.machine.asks:
                    self.facts.agreed(event.place.round.number or None)
                return event
            now = time.monotonic()
            if (event := self._workers.look(now)) is not None:
                return self._seen(event)
            wakeup = self.machine.wakeup()
            if wakeup is not None and now >= wakeup:
                return Tick()
            self.rounds.poll()
            self._inbox.wait(self._patience(now), *self._workers.filenos())

    def _seen(self, event: AgentEvent) -> AgentEvent:
        """Publish what was seen of the workers."""
        match event:
            case WorkerFailed():
                self.facts.failed(self._workers.failures_told())
            case WorkersStopped():
                self.facts.stopped()
            case WorkersFinished():
                return WorkersFinished(hosting=self.rounds.is_host)
        return event

    def _patience(self, now: float) -> float | None:
        """How long the loop may wait before it must check by itself."""
        moments = [when - now for when in (self.machine.wakeup(), self._workers.wakeup()) if when is not None]
        spans = [self.rounds.poll_s, self.facts.waits(self.rounds.sentence)]
        if self.health is not None:
            # A health server checks that the loop makes progress, so it must run also when nothing happens.
            spans.append(self.health.look_every_s or LOOK_S)
        return min((*moments, *(span for span in spans if span is not None)), default=None)

    # -- effects -------------------------------------------------------------------------------------------------

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case AwaitPreload():
                self._workers.tell_preload(busy=effect.busy)
            case AskRound():
                self.facts.asking(aside=effect.aside)
                if effect.aside and effect.reason:
                    self.facts.outlived(effect.reason)
                with self.pulse.excused():  # a handler of others may rightly block for minutes
                    self.rounds.ask(effect.cause, effect.number)
            case StartWorkers():
                begun = time.monotonic()
                with self.pulse.excused():
                    details = self._workers.start(effect.place, effect.restarts)
                self.facts.started(time.monotonic() - begun, effect.restarts, details)
            case TakePlace():
                self._workers.move(effect.place)
                self.facts.moved()
            case ReplaceWorkers():
                begun = time.monotonic()
                ranks, why = self._workers.replace(effect.restarts)
                self.facts.replaced(ranks, time.monotonic() - begun, effect.restarts, why)
            case StopWorkers():
                self.facts.lost(effect.reason)
                self.facts.stopping(effect.reason)
                with self.pulse.excused():
                    self._workers.stop(effect.number, effect.grace_s)
            case SignalWorkers():
                self._workers.send(effect.number)
            case AwaitLink():
                self.facts.parted(effect.reason)
                self._workers.await_link()
            case End():
                self.outcome = effect.outcome
            case _:
                self._say(effect)

    def _say(self, effect: Fail | Replace | Finish | Leave) -> None:
        match effect:
            case Fail():
                self.rounds.fail(effect.cause)
            case Replace():
                self.rounds.replace(effect.cause)
            case Finish():
                with self.pulse.excused():
                    self.rounds.finish()
            case Leave():
                self.rounds.leave(effect.reason)

    # -- what other threads call -----------------------------------------------------------------------------------

    def _hear(self, effect: MemberEffect) -> None:
        """Take news from the source of rounds. Any thread calls this: it only enqueues and publishes facts."""
        match effect:
            case RoundSealed() | RoundBroken() | RunEnded() | AskFailed():
                self._inbox.put(effect)
            case FactHeard():
                told = effect.fact
                facts.publish(Fact(told.kind, told.sentence, told.data, told.level, told.time, told.number))
            case CoordinatorAway():
                facts.warn("coordinator_away", effect.sentence)
            case CoordinatorBack():
                facts.warn("coordinator_back", f"the coordinator answers again after {effect.away_s:.1f} s")
            case PeerCalled() | PeerReplied() if self.calls is not None:
                self.calls.hear(effect)

    def status(self) -> dict[str, Any]:
        """Describe the agent at this moment: round, ranks, pids, what it waits for, restarts left. From any thread."""
        return self.facts.status()

    def readiness(self) -> tuple[bool, str]:
        """Return whether workers of a round run here, and if not, the reason for the wait. From any thread."""
        return self.facts.readiness()

    # -- small things ------------------------------------------------------------------------------------------------

    @contextmanager
    def _blocking(self) -> Iterator[None]:
        """While inside, a signal raises `SignalError`, and so does one that has just come."""
        self._is_blocking = True
        try:
            if (came := self._inbox.find(Signalled)) is not None:
                raise SignalError(f"received {came.name}", signal.Signals(came.number))
            yield
        finally:
            self._is_blocking = False

    @contextmanager
    def _served(self) -> Iterator[None]:
        """While the agent runs, its health server answers."""
        with ExitStack() as stack:
            if self.health is not None:
                self.health.start()
                stack.callback(self.health.stop)
            yield

    def _conclude(self, outcome: Outcome) -> RunResult:
        if outcome.unanswered is not None:
            error = self.rounds.error_of(outcome.unanswered)
            if not isinstance(error, RendezvousGracefulExitError):
                self.facts.ended(Outcome(succeeded=False, reason=str(error)), WorkerState.FAILED, {})
            raise error
        if outcome.rejoins:
            return RunResult(WorkerState.STOPPED)
        result = self._result(outcome)
        errors = {rank: str(failure.message) for rank, failure in result.failures.items()}
        self.facts.ended(outcome, result.state, errors)
        if outcome.signal:
            raise SignalError(f"process {os.getpid()} {outcome.reason}", signal.Signals(outcome.signal))
        return result

    def _result(self, outcome: Outcome) -> RunResult:
        last = self._workers.result
        if outcome.signal:
            return RunResult(WorkerState.STOPPED)
        if not outcome.succeeded:
            return RunResult(WorkerState.FAILED, failures=last.failures)
        return last if last.state == WorkerState.SUCCEEDED else RunResult(WorkerState.SUCCEEDED)
