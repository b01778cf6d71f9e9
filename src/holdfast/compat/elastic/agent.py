"""TorchElastic's agent classes, for custom agents: adapters around `holdfast.agent.driver.Agent`.

The driver runs the agent; it calls the methods below where TorchElastic's agent would call them.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from typing import Any

from holdfast.agent.api import (
    DEFAULT_ROLE,
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    seat,
    workers_at,
)
from holdfast.agent.driver import Agent, Workers, WorkersEvent, as_event
from holdfast.agent.inbox import Inbox
from holdfast.agent.local import LocalWorkers, as_cause, make_local_agent
from holdfast.agent.machine import SHUTDOWN_TIMEOUT_S, AgentEvent, AgentRules, Outcome, WorkersStopped
from holdfast.agent.options import LocalOptions, LocalSettings
from holdfast.agent.round_source import rounds_of
from holdfast.compat.elastic.classic_rounds import ClassicRounds
from holdfast.compat.elastic.status_events import StatusEvents
from holdfast.coordinator.messages import Cause, Place
from holdfast.failures import Failure
from holdfast.metrics.chosen import Metrics
from holdfast.workers import LogsSpecs

__all__ = [
    "ElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]


class ElasticAgent(ABC):
    """Runs and watches the workers of one node. `SimpleElasticAgent` has most of what an agent needs."""

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Take part until the run is over here, and return the result."""

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the group of workers; for reading only."""


class SimpleElasticAgent(StatusEvents, ElasticAgent):
    """An agent for one role's workers; implement how they are started, stopped and watched."""

    def __init__(self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: float = 30) -> None:
        rounds = rounds_of(spec, exit_barrier_timeout)
        inbox: Inbox[AgentEvent] = Inbox()
        rules = AgentRules(
            max_restarts=None if rounds.counts_restarts else spec.max_restarts,
            shutdown_timeout_s=shutdown_timeout,
            exit_barrier_timeout_s=exit_barrier_timeout,
        )
        agent = Agent(WorkerGroup(spec), rounds, rules, inbox)
        agent.supervise(HookedWorkers(self))
        self._adopt(agent, exit_barrier_timeout, shutdown_timeout)

    def _adopt(self, agent: Agent, exit_barrier_timeout: float, shutdown_timeout: float) -> None:
        """Take the driver that runs this agent, and have it call our methods."""
        self._begun = time.monotonic()
        self._agent = agent
        self._rounds = agent.rounds
        self._observers = agent.observers
        self._worker_group = agent.group
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._store: Any = None
        #: Whole seconds, once a run is over.
        self._total_execution_time = 0
        #: This node's place in the round, and the restarts that the job has used.
        self._place: Place | None = None
        self._restarts = 0
        self._was_started = False
        if isinstance(self._rounds, ClassicRounds):
            self._rounds.exit_barrier = self._exit_barrier

    # -- what an agent of your own fills in ------------------------------------------------------------------------

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start the group's workers and return an id for each local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop every worker of the group; returns when none runs."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look at the workers without waiting and return their state."""

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Release everything that the agent holds; called once, at the end."""

    # -- what may be changed ---------------------------------------------------------------------------------------

    def _cause_of(self, result: RunResult) -> Cause:
        """Say in a sentence why the workers failed."""
        rank, failure = min(result.failures.items(), default=(-1, None))
        if failure is None:
            return Cause("a worker failed")
        ended = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        return Cause(f"rank {rank} ended with {ended}")

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Take the round that was agreed, number the workers, start them."""
        self._rendezvous(worker_group)
        worker_group.state = WorkerState.INIT
        ids = self._start_workers(worker_group)
        for worker in worker_group.workers:
            worker.id = ids[worker.local_rank]
        worker_group.state = WorkerState.HEALTHY

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Start the workers again in a new round; the old ones have been stopped."""
        self._initialize_workers(worker_group)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Take the round that was agreed, and number the workers by it."""
        assert self._place is not None
        seat(worker_group, self._place)
        worker_group.store = self._store = self._rounds.store()  # type: ignore[attr-defined] # all our sources have one
        worker_group.workers = self._assign_worker_ranks(
            self._store, self._place.group_rank, self._place.group_world_size, worker_group.spec
        )

    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Number this node's workers by its place in the round."""
        del store, group_rank, group_world_size
        assert self._place is not None
        return workers_at(self._place, spec.local_world_size)

    def _exit_barrier(self) -> None:
        """Wait for the other agents through the store, if the rendezvous is not ours."""
        if isinstance(self._rounds, ClassicRounds):
            self._rounds.wait_others(self._worker_group.group_world_size or 1, self._store)

    def _record_metrics(self, group_results: RunResult) -> None:
        """Take the result of a run, to record metrics of your own; TorchElastic's have been recorded from facts."""
        self._record_flakiness_metric(group_results.is_failed())

    def _record_flakiness_metric(self, is_failed: bool = False) -> None:
        """Take whether a run failed; `workers.<role>.flakiness` has been recorded."""

    def _record_worker_events(self, result: RunResult) -> None:
        """Take the result of a run, to record events of your own; those of the workers have been recorded."""

    def _start(self, place: Place, restarts: int) -> None:
        self._place, self._restarts = place, restarts
        (self._restart_workers if self._was_started else self._initialize_workers)(self._worker_group)
        self._was_started = True

    # -- what every agent does -------------------------------------------------------------------------------------

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the group of workers; for reading only."""
        del role
        return self._worker_group

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Take part until the run is over here.

        Raises `SignalError` if a signal ended it, and the rendezvous's error if no round was formed.
        """
        begun = time.monotonic()

        def drive() -> RunResult:
            result = self._invoke_run(role)
            self._total_execution_time = int(time.monotonic() - begun)
            self._record_metrics(result)
            self._record_worker_events(result)
            return result

        try:
            return self._agent.run(drive)
        finally:
            self._total_execution_time = int(time.monotonic() - begun)

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the agent's loop to its end."""
        del role
        return self._agent.drive()

    def status(self) -> dict[str, Any]:
        """Describe the agent at this moment: round, ranks, pids, what it waits for, restarts left. From any thread."""
        return self._agent.status()

    def readiness(self) -> tuple[bool, str]:
        """Return whether workers of a round run here, and if not, the reason for the wait. From any thread."""
        return self._agent.readiness()

    @property
    def outcome(self) -> Outcome | None:
        """How the agent ended, and why, once it has."""
        return self._agent.outcome

    @property
    def _remaining_restarts(self) -> int:
        return max(self._worker_group.spec.max_restarts - self._agent.machine.restarts, 0)


class LocalElasticAgent(SimpleElasticAgent):
    """Starts workers as local processes, and notices as soon as one ends."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
        *,
        signals_to_handle: str | None = None,
        options: LocalOptions = LocalOptions(),  # noqa: B008 - frozen
        metrics: Metrics | None = None,
    ) -> None:
        del uninterruptible_state_timeout  # a stop never waits for a worker in state D longer than its limit
        settings = LocalSettings(
            logs_specs,
            start_method,
            exit_barrier_timeout,
            log_line_prefix_template,
            shutdown_timeout,
            signals_to_handle,
        )
        agent, local = make_local_agent(
            spec,
            settings,
            options,
            metrics=metrics,
            health_server=health_check_server,
            workers_type=lambda *parts: HookedLocalWorkers(self, *parts),
        )
        assert isinstance(local, HookedLocalWorkers)
        self._local = local
        self._adopt(agent, exit_barrier_timeout, shutdown_timeout)

    def warm_up(self) -> None:
        """Begin to import the workers' modules, in the background."""
        self._local.warm_up()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What went wrong with this node's workers since they were last started."""
        return self._local.failures

    def get_last_progress_time(self) -> int:
        """When the watchdog last made progress, in whole seconds of the wall clock; now, if there is none."""
        return self._local.get_last_progress_time()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        del worker_group
        assert self._place is not None
        return dict(self._local.launch(self._place, self._restarts))

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        del worker_group
        return self._local.monitor_processes(time.monotonic())

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        del worker_group
        self._local.stop_processes(signal.SIGTERM, self._shutdown_timeout)
        self._local.wait_stopped()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._local.close_processes(death_sig, timeout)

    def _cause_of(self, result: RunResult) -> Cause:
        del result
        return as_cause(self._local.failures)


class HookedWorkers(Workers):
    """The workers that a custom agent starts, watches and stops by its methods, as the driver sees them."""

    def __init__(self, agent: SimpleElasticAgent) -> None:
        self._agent = agent
        self.result = RunResult(WorkerState.UNKNOWN)
        self._is_running = self._is_stopped = False
        self._look_at: float | None = None

    def start(self, place: Place, restarts: int) -> dict[str, Any]:
        """Have the agent start its workers."""
        self._agent._start(place, restarts)
        self._is_running = True
        return {}

    def move(self, place: Place) -> None:
        """Number the workers anew."""
        self._agent._place = place
        self._agent._rendezvous(self._agent._worker_group)

    def look(self, now: float) -> WorkersEvent | None:
        """Have the agent look at its workers."""
        if self._is_stopped:
            self._is_stopped = False
            return WorkersStopped()
        if not self._is_running:
            return None
        agent = self._agent
        self._look_at = now + agent._worker_group.spec.monitor_interval
        return self._take(agent._monitor_workers(agent._worker_group))

    def _take(self, result: RunResult) -> WorkersEvent | None:
        self._agent._worker_group.state = result.state
        event = as_event(result, self._agent._cause_of)
        if event is not None:
            self.result = result
            self._is_running = False
        return event

    def failures_told(self) -> list[dict[str, Any]]:
        """Describe the failures that were just reported."""
        return [
            {
                "kind": "signal" if failure.exitcode < 0 else "exit",
                "rank": rank,
                "local_rank": failure.local_rank,
                "pid": failure.pid,
                "exit_code": failure.exitcode,
                "message": failure.message,
            }
            for rank, failure in self.result.failures.items()
        ]

    def wakeup(self) -> float | None:
        """Say when to look: every `monitor_interval`."""
        return self._look_at if self._is_running else None

    def stop(self, number: int, grace_s: float) -> None:
        """Have the agent stop its workers, which waits for them."""
        del number, grace_s
        self._agent._stop_workers(self._agent._worker_group)
        self._is_running, self._is_stopped = False, True

    def close(self, number: int) -> None:
        """Have the agent release everything."""
        self._agent._shutdown(signal.Signals(number))


class HookedLocalWorkers(LocalWorkers):
    """Local processes behind the methods that a subclass of `LocalElasticAgent` may override."""

    def __init__(self, owner: LocalElasticAgent, *parts: Any) -> None:
        super().__init__(*parts)
        self._owner = owner
        self.monitor_processes = super().monitor
        self.stop_processes = super().stop
        self.close_processes = super().close

    def start(self, place: Place, restarts: int) -> dict[str, Any]:
        """Have the agent start its workers."""
        self._owner._start(place, restarts)
        return self.details()

    def move(self, place: Place) -> None:
        """Number the workers anew."""
        super().move(place)
        self._owner._place = place
        self._owner._rendezvous(self.group)

    def monitor(self, now: float) -> RunResult:
        """Have the agent look at its workers."""
        del now
        return self._owner._monitor_workers(self.group)

    def cause(self, result: RunResult) -> Cause:
        """Have the agent say why its workers failed."""
        return self._owner._cause_of(result)

    def stop(self, number: int, grace_s: float) -> None:
        """Have an agent that says how stop its workers; whatever it leaves is stopped in the agent's loop."""
        if not self._stopping and type(self._owner)._stop_workers is not LocalElasticAgent._stop_workers:
            self._owner._stop_workers(self.group)
        super().stop(number, grace_s)

    def close(self, number: int, grace_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Have the agent release everything."""
        del grace_s
        self._owner._shutdown(signal.Signals(number))
