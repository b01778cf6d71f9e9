"""The agent's driver and its scaffolding: one loop that waits, and the methods that an agent of your own fills in.

The loop takes out of one inbox what signal handlers and the rendezvous have left there, looks at the workers, and hands
each event to the machine, whose effects it carries out by the methods below. A rendezvous of ours pushes; any other is
polled every `monitor_interval`.
"""

from __future__ import annotations

import os
import signal
import time
from abc import abstractmethod
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.agent.api import DEFAULT_ROLE, ElasticAgent, RunResult, WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.inbox import Inbox
from holdfast.agent.machine import (
    AgentEffect,
    AgentEvent,
    AgentMachine,
    AgentRules,
    AskRound,
    Begin,
    End,
    LeaveRun,
    NotStarted,
    Outcome,
    ReplaceWorkers,
    RoundAgreed,
    RoundLost,
    RunOver,
    Signalled,
    SignalWorkers,
    Stage,
    StartWorkers,
    StopWorkers,
    TellFailure,
    TellFinished,
    TellLoss,
    WorkerFailed,
    WorkerLost,
    WorkersFinished,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.agent.meeting import Meeting, meet
from holdfast.agent.observers import Observers
from holdfast.agent.ranks import RoleInstanceInfo, assign_ranks
from holdfast.agent.signals import handled
from holdfast.agent.status_events import StatusEvents
from holdfast.agent.teller import Teller
from holdfast.coordinator.messages import Cause
from holdfast.coordinator.ranks import Numbers
from holdfast.errors import RendezvousGracefulExitError, SignalError
from holdfast.facts import Fact, facts
from holdfast.health import HealthCheckServer, Pulse
from holdfast.machine import Tick
from holdfast.quantities import count
from holdfast.rendezvous import RendezvousInfo, RendezvousStoreInfo, as_rendezvous_info

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How often the loop comes round for a health server that does not say how often it looks.
LOOK_S = 1.0
#: Where agents meet at the end through a store, TorchElastic's agents among them.
EXIT_BARRIER_KEY = "torchelastic/agent/terminal_state"


class SimpleElasticAgent(StatusEvents, ElasticAgent):
    """An agent for one role's workers; fill in how they are started, stopped and watched."""

    #: Whether `_shutdown` looks into the inbox for signals by itself; out of one that does not, a signal raises.
    heeds_signals = False

    def __init__(self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: float = 30) -> None:
        self._begun = time.monotonic()
        self._worker_group = WorkerGroup(spec)
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._inbox: Inbox[AgentEvent] = Inbox()
        self._meeting: Meeting = meet(spec, self._inbox)
        self._machine = AgentMachine(self._rules())
        self._result = RunResult(WorkerState.UNKNOWN)
        self._outcome: Outcome | None = None
        self._restart_count = 0
        self._teller = Teller(self._worker_group)
        self._observers = Observers(spec, self._meeting.node)
        #: When the loop last came round; whoever watches the agent asks it.
        self._pulse = Pulse()
        self._health: HealthCheckServer | None = None
        #: Names of the signals that end the agent; None means what the environment says, or the default.
        self.signals_to_handle: str | None = None
        #: Signals that go to the workers and mean nothing to the agent.
        self.forward_signals: tuple[signal.Signals, ...] = ()
        self._is_shutting_down = False

    # -- what an agent of your own fills in ------------------------------------------------------------------------

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the group's workers and return an id for each local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop every worker of the group; returns when none runs."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look at the workers without waiting and say how they are."""

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Give back whatever the agent holds; called once, at the end."""

    # -- what may be changed ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Say that the agent has started, before anything that may take long."""
        self._teller.begins({})

    def _rules(self) -> AgentRules:
        """How this agent behaves."""
        spec = self._worker_group.spec
        return AgentRules(
            max_restarts=None if self._meeting.counts_restarts else spec.max_restarts,
            replaces=spec.max_restarts > 0,
            shutdown_timeout_s=self._shutdown_timeout,
            exit_barrier_timeout_s=self._exit_barrier_timeout,
        )

    def _watched(self) -> tuple[int, ...]:
        """Descriptors that become readable when the workers should be looked at; none means: poll."""
        return ()

    def _watch_deadline(self) -> float | None:
        """The monotonic time at which the workers should be looked at in any case."""
        return None

    def _ask_stop(self, number: int, grace_s: float) -> bool:
        """Begin to stop the workers; says whether they have stopped already. By default it waits for them."""
        del number, grace_s
        with self._pulse.excused():
            self._stop_workers(self._worker_group)
        return True

    def _get_ready(self) -> None:
        """Do what need not wait for a round, so that the others do not wait for it once there is one."""

    def _survives(self) -> bool:
        """Say whether the workers that run outlive each other and the round; an agent of your own restarts them all."""
        return False

    def _replace_workers(self) -> None:
        """Start new workers in the place of those that failed."""
        raise NotImplementedError

    def _pass_signal(self, number: int) -> None:
        """Pass a signal on to the workers; an agent of your own that cannot simply does not."""
        del number

    def _has_stopped(self) -> bool:
        """Say whether a stop that was begun is over."""
        return True

    def _cause_of(self, result: RunResult) -> Cause:
        """Say in a sentence why the workers failed."""
        rank, failure = min(result.failures.items(), default=(-1, None))
        if failure is None:
            return Cause("a worker failed")
        ended = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        return Cause(f"rank {rank} ended with {ended}")

    def _start_details(self) -> dict[str, Any]:
        """What else to tell of workers that have been started."""
        return {}

    def _failure_details(self, result: RunResult) -> list[dict[str, Any]]:
        """What to tell of each worker that failed."""
        return [
            {
                "kind": "signal" if failure.exitcode < 0 else "exit",
                "rank": rank,
                "local_rank": failure.local_rank,
                "pid": failure.pid,
                "exit_code": failure.exitcode,
                "message": failure.message,
            }
            for rank, failure in result.failures.items()
        ]

    # -- what every agent does -------------------------------------------------------------------------------------

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the group of workers; for reading only."""
        del role
        return self._worker_group

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Take part until the run is over here.

        Raises `SignalError` where a signal ended it, and what the rendezvous raises where no round came about.
        """
        # The handlers stay until everything is given back: a signal that comes while workers are being stopped must not
        # end this process before them.
        with handled(self._inbox, self.signals_to_handle, self.forward_signals, self._is_blocking):
            death_sig = signal.SIGTERM
            try:
                with self._observers, self._watched_health():
                    self._begin()
                    return self._invoke_run(role)
            except RendezvousGracefulExitError as left:
                facts.publish(Fact("agent_left", str(left)))
                return RunResult(WorkerState.STOPPED)
            except SignalError as exception:
                death_sig = exception.sigval
                raise
            finally:
                self._is_shutting_down = True
                self._shutdown(death_sig)

    def _is_blocking(self) -> bool:
        """Whether the loop is in code of others, out of which only an exception leads."""
        return self._meeting.is_blocking or (self._is_shutting_down and not self.heeds_signals)

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Hand events to the machine and carry out what it answers, until it ends."""
        del role
        event: AgentEvent | None = Begin()
        while self._outcome is None:
            for effect in self._machine.handle(event or Tick(), time.monotonic()):
                self._perform(effect)
            event = None if self._outcome is not None else self._next_event()
        return self._conclude(self._outcome)

    def _next_event(self) -> AgentEvent:
        """Wait for the next thing that happens."""
        while True:
            self._pulse.beat()
            if (event := self._inbox.take()) is not None:
                if isinstance(event, RoundLost) and not self._meeting.is_polled:
                    return replace(event, survived=self._survives())
                return event
            if self._machine.regrouping and self._meeting.answered():
                self._take_round(self._worker_group)
                return RoundAgreed()
            if (event := self._look_at_workers()) is not None:
                return event
            wakeup = self._machine.wakeup()
            if wakeup is not None and time.monotonic() >= wakeup:
                return Tick()
            self._inbox.wait(self._patience(wakeup), *self._watched())

    def _patience(self, wakeup: float | None) -> float | None:
        """How long the loop may wait before it must look around by itself."""
        now = time.monotonic()
        times = [when - now for when in (wakeup, self._watch_deadline()) if when is not None]
        if self._health is not None:
            # Somebody watches that the loop moves, so it must come round also when nothing happens.
            times.append(getattr(self._health, "look_every_s", LOOK_S))
        polls_workers = self._machine.stage is Stage.RUNNING and not self._watched()
        if polls_workers or (self._machine.stage is Stage.RUNNING and self._meeting.is_polled):
            times.append(self._worker_group.spec.monitor_interval)
        return min(times, default=None)

    def _look_at_workers(self) -> AgentEvent | None:
        group = self._worker_group
        if self._machine.stage is Stage.STOPPING:
            return self._stopped() if self._has_stopped() else None
        if self._machine.stage is not Stage.RUNNING:
            return None
        result = self._monitor_workers(group)
        group.state = result.state
        if result.state == WorkerState.SUCCEEDED:
            self._result = result
            return WorkersFinished(hosting=self._meeting.is_host)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._result = result
            self._teller.failed(self._failure_details(result))
            cause = self._cause_of(result)
            return WorkerLost(cause) if self._survives() else WorkerFailed(cause)
        if result.state != WorkerState.HEALTHY:
            raise RuntimeError(f"the workers are in state {result.state.name}, which an agent cannot go on from")
        waiting = self._meeting.poll()
        return RoundLost(f"{count(waiting, 'node')} want to join") if waiting else None

    def _stopped(self) -> WorkersStopped:
        self._teller.stopped()
        return WorkersStopped(self._late_cause())

    def _late_cause(self) -> Cause | None:
        """A better cause that came to light while the workers were being stopped."""
        return None

    # -- effects ---------------------------------------------------------------------------------------------------

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case StartWorkers():
                self._meeting.cause = effect.cause
                self._start()
            case StopWorkers():
                self._teller.lost(effect.reason)
                self._teller.stopping(effect.reason)
                if self._ask_stop(effect.number, effect.grace_s):
                    self._inbox.put(self._stopped())
            case ReplaceWorkers():
                self._replace_workers()
            case AskRound():
                self._teller.asking()
                self._meeting.cause = None
                self._meeting.ask()
            case SignalWorkers():
                self._pass_signal(effect.number)
            case TellFailure():
                self._remaining_restarts = max(self._remaining_restarts - 1, 0)
                self._meeting.tell_failure(effect.cause)
            case TellLoss():
                self._remaining_restarts = max(self._remaining_restarts - 1, 0)
                self._meeting.tell_loss(effect.cause)
            case TellFinished():
                self._meeting.tell_finished()
                if self._meeting.is_polled:
                    with self._pulse.excused():
                        self._exit_barrier()
                    self._inbox.put(RunOver("finished", failed=False))
            case LeaveRun():
                self._meeting.leave(effect.reason)
            case End():
                self._outcome = effect.outcome

    def _heed_signals(self) -> None:
        """Start nothing where a signal has come that ends the agent."""
        if self._inbox.holds(Signalled):
            raise _Instead

    def _start(self) -> None:
        """Ask for a round and start its workers; whatever comes of it goes to the machine."""
        if self._restart_count:
            self._restart_workers(self._worker_group)
        else:
            self._initialize_workers(self._worker_group)
        self._restart_count += 1

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Agree on a round, number the workers, start them."""
        try:
            self._rendezvous(worker_group)
            worker_group.state = WorkerState.INIT
            begun = time.monotonic()
            ids = self._start_workers(worker_group)
        except _Instead as instead:
            self._inbox.put(NotStarted())
            if instead.event is not None:
                self._inbox.put(instead.event)
            return
        for worker in worker_group.workers:
            worker.id = ids[worker.local_rank]
        worker_group.state = WorkerState.HEALTHY
        place = self._meeting.place
        used = place.restarts_used if place is not None else worker_group.spec.max_restarts - self._remaining_restarts
        self._teller.started(time.monotonic() - begun, used, self._start_details())
        self._inbox.put(WorkersStarted(place.round.number if place is not None else None))

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Start anew in a fresh round; the old workers have been stopped by now."""
        self._initialize_workers(worker_group)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Block until a round is agreed, and number the workers by it."""
        self._teller.asking()
        self._get_ready()
        while True:
            self._pulse.beat()
            # Looked at before the first ask: who is told to end while getting ready interrupts nobody.
            event = None if self._meeting.is_polled else self._inbox.take()
            if isinstance(event, RunOver | Signalled):
                raise _Instead(event)
            if not self._meeting.ask() or self._meeting.answered():
                break
            self._teller.waits_for(self._meeting.tell_wait())
            self._inbox.wait(self._meeting.wait_step_s)
        self._take_round(worker_group)

    def _take_round(self, worker_group: WorkerGroup) -> None:
        """Take the round that was agreed, and number the workers by it."""
        spec = worker_group.spec
        with self._pulse.excused():  # a stranger's rendezvous may rightly block for minutes
            info = as_rendezvous_info(self._meeting.round())
        place = self._meeting.place
        self._teller.agreed(place.round.number if place is not None else None)
        worker_group.store = self._store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        master = self._master(info, spec)
        worker_group.master_addr, worker_group.master_port = master.master_addr, master.master_port
        worker_group.workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, spec)

    def _master(self, info: RendezvousInfo, spec: WorkerSpec) -> RendezvousStoreInfo:
        """Where the round's rank 0 listens: as the spec or the rendezvous says, or as agreed through the store."""
        known = info.bootstrap_store_info
        if spec.master_addr and spec.master_port:
            return RendezvousStoreInfo(spec.master_addr, spec.master_port)
        if known is None:
            known = RendezvousStoreInfo.build(
                info.rank, info.store, spec.master_addr or spec.local_addr, spec.master_port
            )
        return known

    def _assign_worker_ranks(self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec) -> list[Any]:
        """Number this node's workers: by the place that the rendezvous gave, or by an exchange through the store."""
        place = self._meeting.place
        if place is not None:
            numbers = Numbers(place.first_rank, place.world_size, place.first_role_rank, place.role_world_size)
            return assign_ranks(spec.local_world_size, numbers)
        mine = RoleInstanceInfo(spec.role, group_rank, spec.local_world_size)
        return mine.exchange(store, group_world_size)

    def _exit_barrier(self) -> None:
        """Wait for the other agents through the store; a timeout is told and lived with."""
        from holdfast.store.agree import barrier

        nodes = self._worker_group.group_world_size or 1
        if self._store is None or nodes == 1:
            return
        try:
            with self._meeting.blocking():
                barrier(self._store, nodes, EXIT_BARRIER_KEY, self._exit_barrier_timeout)
        except Exception as error:  # noqa: BLE001 - a stranger's store may raise anything, and our work is done
            facts.warn("exit_barrier", f"the others did not finish with us: {error}")

    # -- the end ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Describe the agent at this moment: round, ranks, pids, what it waits for, restarts left. From any thread."""
        return self._teller.status()

    def readiness(self) -> tuple[bool, str]:
        """Say whether workers of a round run here, and if not what is being waited for. From any thread."""
        return self._teller.readiness()

    def _conclude(self, outcome: Outcome) -> RunResult:
        result = self._conclusion(outcome)
        errors = {rank: str(failure.message) for rank, failure in result.failures.items()}
        self._teller.ended(outcome, result.state, errors)
        if outcome.signal:
            raise SignalError(f"process {os.getpid()} {outcome.reason}", signal.Signals(outcome.signal))
        return result

    def _conclusion(self, outcome: Outcome) -> RunResult:
        if outcome.signal:
            return RunResult(WorkerState.STOPPED)
        if outcome.succeeded and self._result.state == WorkerState.SUCCEEDED:
            return self._result
        if outcome.succeeded:
            return RunResult(WorkerState.SUCCEEDED)
        return RunResult(WorkerState.FAILED, failures=self._result.failures)

    @property
    def outcome(self) -> Outcome | None:
        """With what the agent ended, and why, once it has."""
        return self._outcome

    @contextmanager
    def _watched_health(self) -> Iterator[None]:
        """While the agent runs, its health server answers."""
        if self._health is None:
            yield
            return
        self._health.start()
        try:
            yield
        finally:
            self._health.stop()


class _Instead(Exception):
    """Something else happened before workers were started; `event` says what, where the inbox does not."""

    def __init__(self, event: AgentEvent | None = None) -> None:
        super().__init__(str(event))
        self.event = event
