"""The agent of a node: workers are processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.agent.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.environment import RoundView, WorkerView, worker_environment
from holdfast.agent.hangs import Hangs, ask_others, ask_others_still, explain_hang
from holdfast.agent.machine import AgentRules, Signalled
from holdfast.agent.plans import make_log_options, make_plans
from holdfast.agent.preloading import Preloading
from holdfast.agent.signals import SIGNALS_DEFAULT, SIGNALS_VARIABLE
from holdfast.agent.simple import SimpleElasticAgent
from holdfast.agent.standing import Frozen, HalfFinished
from holdfast.coordinator.machine import round_space
from holdfast.coordinator.messages import Cause
from holdfast.facts import Fact, facts
from holdfast.failures import Failure, Kind, ProcessFailure
from holdfast.failures.stacks import Stack
from holdfast.failures.verdict import root_cause
from holdfast.health import PORT_VARIABLE, HealthCheckServer, LastProgress, create_healthcheck_server, parse_health_port
from holdfast.metrics.api import installed
from holdfast.metrics.chosen import Metrics
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.store.environ import ENDPOINT_VARIABLE, ETCD_VARIABLE, MAX_WORKERS_VARIABLE, SPACE_VARIABLE
from holdfast.timer.hang import HangOptions
from holdfast.wire.address import Endpoint
from holdfast.workers import (
    DefaultLogsSpecs,
    Gang,
    LogsDest,
    LogsSpecs,
    WorkerExited,
)
from holdfast.workers.crew import Crew
from holdfast.workers.logs import SYS_STREAM

if TYPE_CHECKING:
    from holdfast.agent.keeping import Keeping
    from holdfast.metrics.scraping import Scraping

#: As TorchElastic has it.
HEALTH_TIMEOUT_S = 60.0
NO_CLIENT = "there are no metrics here: the agent lacks the Prometheus client; pip install 'holdfast[prometheus]' there"


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What our own agent can do beyond TorchElastic's."""

    #: Modules that a template process imports once; workers are forked from it.
    preload: tuple[str, ...] = ()
    backoff_s: float = 0.0
    backoff_s_max: float = 60.0
    forward_signals: tuple[signal.Signals, ...] = ()
    #: Bytes kept of each log file; None keeps all.
    log_bytes_max: int | None = None
    #: How long some workers may have finished while others go on before the others' stacks are reported.
    half_finished_s: float | None = None
    #: How long workers that call `holdfast.heartbeat` may be silent; None does not watch them.
    hang: HangOptions | None = None
    #: Whether to keep workers' states in this node's memory, and copies of the neighbours'.
    vault: bool = False
    #: What to tell once the launch is known to be sound: how other nodes can join it.
    invitation: str = ""
    #: Where the health server listens; None leaves it to TORCHELASTIC_HEALTH_CHECK_PORT.
    health: Endpoint | None = None
    #: The silence of the agent's loop after which the health server says that it hangs.
    health_timeout_s: float = HEALTH_TIMEOUT_S


class LocalElasticAgent(SimpleElasticAgent):
    """Starts workers as local processes, and notices the moment that one ends."""

    heeds_signals = True

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
        self._options = options
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        self.forward_signals = options.forward_signals
        self.signals_to_handle = signals_to_handle
        self._logs_specs = logs_specs or DefaultLogsSpecs()
        self._start_method = start_method
        self._prefix_template = log_line_prefix_template
        self._metrics = metrics if metrics is not None else _chosen_here()
        self._crew: Crew | None = None
        self._frozen = Frozen()
        self._half_finished = HalfFinished(options.half_finished_s)
        self._dest: LogsDest | None = None
        self._preloading = Preloading(
            options.preload, several=spec.local_world_size > 1, is_interrupted=lambda: self._inbox.holds(Signalled)
        )
        self._keeping: Keeping | None = None
        self._hangs = Hangs(
            options.hang,
            self._gather_stacks,
            lambda: ask_others_still(self._meeting.questions, self._worker_group),
        )
        if self._meeting.questions is not None:
            self._meeting.questions.answerer = self._hangs.answer
        self._scraping: Scraping | None = None
        self._health = health_check_server or self._make_health(options.health)
        if isinstance(given := getattr(health_check_server, "alive_callback", None), LastProgress):
            self._pulse = given
        self._failures: dict[int, Failure] = {}

    def _make_health(self, where: Endpoint | None) -> HealthCheckServer | None:
        if where is None and (text := os.environ.get(PORT_VARIABLE)):
            where = parse_health_port(text, PORT_VARIABLE)
        if where is None:
            return None
        from holdfast.metrics.sinks.prometheus import is_installed  # launches without a health port need none of it

        can_scrape = is_installed()
        if can_scrape and (self._metrics is None or self._metrics.prometheus is None):
            from holdfast.metrics.scraping import Scraping

            self._scraping = Scraping(self._worker_group.spec.role)
        return create_healthcheck_server(
            self._pulse,
            where.port,
            self._options.health_timeout_s,
            host=where.host,
            status=self.status,
            ready=self.readiness,
            metrics=self._scrape if can_scrape else None,
            no_metrics=NO_CLIENT,
            watched={"the watchdog": self._hangs.get_last_progress_time},
        )

    def _scrape(self) -> tuple[bytes, str]:
        """What Prometheus reads: the agent's metrics and those that its workers have handed over."""
        if self._scraping is not None:
            return self._scraping.scrape()
        from holdfast.metrics.sinks.prometheus import CONTENT_TYPE, render

        assert self._metrics is not None
        return render(self._metrics.registry), CONTENT_TYPE

    @contextlib.contextmanager
    def _watched_health(self) -> Iterator[None]:
        with super()._watched_health():
            if self._scraping is None:
                yield
                return
            self._scraping.start()
            try:
                yield
            finally:
                self._scraping.close()

    # -- starting --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Open the journal, before nodes are waited for and modules imported, so that the run can be found at once."""
        handler = self._worker_group.spec.rdzv_handler
        open_folder = getattr(self._logs_specs, "open_folder", None)  # which a class of another package may not have
        folder = open_folder(handler.get_run_id()) if open_folder is not None else ""
        self._observers.place_journal(folder)
        endpoint = str(handler.endpoint) if isinstance(handler, HoldfastRendezvousHandler) else ""
        self._teller.begins({"logs": "" if folder == os.devnull else folder, "endpoint": endpoint})

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        envs = self._environments(worker_group)
        self._hangs.prepare(worker_group.spec.rdzv_handler.get_run_id(), worker_group.spec.role, envs)
        dest = self._logs_specs.reify(envs)
        gang = self._make_gang(worker_group, envs, dest)
        self._heed_signals()  # which may have come while the template was waited for
        self._crew = Crew(gang)
        self._failures = {}
        self._half_finished.begin()
        self._frozen.begin(list(envs))
        self._crew.start()
        self._hangs.watch(worker_group, self._crew)
        self._dest = dest
        self._observers.place_journal(self._logs_specs.root_log_dir)
        ranks = [worker.global_rank for worker in worker_group.workers]
        if self._metrics is not None and self._metrics.prometheus is not None:
            self._metrics.prometheus.keep_ranks(ranks)
        if self._scraping is not None:
            self._scraping.keep_ranks(ranks)
        return dict(self._crew.pids())

    def _make_gang(self, group: WorkerGroup, envs: dict[int, dict[str, str]], dest: LogsDest) -> Gang:
        return Gang(
            make_plans(group.spec, envs, self._start_method),
            dest,
            make_log_options(group.spec, envs, self._prefix_template, self._options.log_bytes_max),
            template=self._preloading.wait_ready(),
        )

    # -- workers that outlive each other -----------------------------------------------------------------------------

    def _survives(self) -> bool:
        """Workers say by themselves that they train in process, when they begin to."""
        crew = self._crew
        return crew is not None and any(crew.is_member(rank) for rank in crew.plans)

    def _replace_workers(self) -> None:
        """Start a new worker in the place of each that failed; the others do not notice us."""
        crew, group = self._crew, self._worker_group
        assert crew is not None
        begun = time.monotonic()
        failed = [rank for rank in self._failures if rank not in crew.running()]
        envs = {rank: env for rank, env in self._environments(group).items() if rank in failed}
        self._hangs.prepare(group.spec.rdzv_handler.get_run_id(), group.spec.role, envs)
        crew.replace(self._make_gang(group, envs, self._logs_specs.reify(envs)))
        cause, self._failures = _as_cause(list(self._failures.values())).sentence, {}
        self._frozen.begin(failed)
        for worker in group.workers:
            worker.id = crew.pids()[worker.local_rank]
        group.state = WorkerState.HEALTHY
        self._hangs.watch(group, crew)
        self._teller.replaced([w.global_rank for w in group.workers if w.local_rank in failed], begun, cause)

    def _environments(self, group: WorkerGroup) -> dict[int, dict[str, str]]:
        spec = group.spec
        place = self._meeting.place
        used = place.restarts_used if place is not None else spec.max_restarts - self._remaining_restarts
        view = RoundView(
            run_id=spec.rdzv_handler.get_run_id(),
            role=spec.role,
            local_world_size=spec.local_world_size,
            group_rank=group.group_rank or 0,
            group_world_size=group.group_world_size or 1,
            master_addr=group.master_addr or "",
            master_port=group.master_port or 0,
            restart_count=used,
            max_restarts=spec.max_restarts,
            signals_to_handle=self.signals_to_handle or os.environ.get(SIGNALS_VARIABLE, SIGNALS_DEFAULT),
            use_agent_store=spec.rdzv_handler.use_agent_store,
            round_number=place.round.number if place is not None else None,
            extra={
                **self._coordinator_variables(spec),
                **self._metrics_variables(),
            },
        )
        return {
            worker.local_rank: worker_environment(
                os.environ,
                view,
                WorkerView(
                    worker.local_rank, worker.global_rank, worker.world_size, worker.role_rank, worker.role_world_size
                ),
                virtual_local_rank=spec.virtual_local_rank,
            )
            for worker in group.workers
        }

    def _metrics_variables(self) -> dict[str, str]:
        """Tell workers where their metrics go."""
        if self._scraping is not None:
            return self._scraping.worker_environment(self._metrics)
        return self._metrics.worker_environment() if self._metrics is not None else {}

    def _coordinator_variables(self, spec: WorkerSpec) -> dict[str, str]:
        """Tell workers where the coordinator is, so that they can use its store."""
        handler = spec.rdzv_handler
        if not isinstance(handler, HoldfastRendezvousHandler) or handler.place is None:
            return {}
        if self._options.vault and self._keeping is None:
            from holdfast.agent.keeping import Keeping  # few launches want it, and all would wait for the import

            self._keeping = Keeping(handler)
        variables = {
            **(self._keeping.variables() if self._keeping is not None else {}),
            ENDPOINT_VARIABLE: str(handler.endpoint),
            SPACE_VARIABLE: round_space(handler.get_run_id(), handler.place.round),
            MAX_WORKERS_VARIABLE: str(handler.max_nodes * spec.local_world_size),
        }
        variables |= handler.secret.as_environ()
        if handler.elected_by is not None:
            variables[ETCD_VARIABLE] = str(handler.elected_by)
        return {**variables, **(handler.tls.as_environ() if handler.tls is not None else {})}

    # -- warm starts -----------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Begin to import what workers will need, in the background."""
        self._preloading.begin()

    def _get_ready(self) -> None:
        """Import before breaking into a round that runs: its nodes train on meanwhile, instead of waiting for us."""
        if self._preloading.importing and self._meeting.would_disturb():
            names = self._preloading.names
            facts.publish(Fact("waiting", f"a round is running; importing {names} before asking to be let in"))
            self._preloading.wait_ready()

    # -- watching --------------------------------------------------------------------------------------------------

    def _watched(self) -> tuple[int, ...]:
        return (self._crew.fileno(), *self._hangs.filenos()) if self._crew is not None else ()

    def _watch_deadline(self) -> float | None:
        times = [self._half_finished.deadline(), self._frozen.deadline()]
        if self._crew is not None:
            times.append(self._crew.deadline())
        return min((when for when in times if when is not None), default=None)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        crew = self._crew
        assert crew is not None
        self._frozen.look(crew, outlive=self._survives())
        ended = crew.take_exits()
        # Whoever the watchdog had to end was not done, whatever its exit code says.
        failed = [exited for exited in ended if exited.failed or self._hangs.found(exited.local_rank) is not None]
        if failed:
            for exited in failed:
                self._failures[exited.local_rank] = self._examine(crew, exited)
            return RunResult(WorkerState.FAILED, failures=self._process_failures(worker_group, crew, failed))
        if self._note_immovable(crew):
            return RunResult(WorkerState.FAILED)
        if crew.running():
            if (sentence := self._half_finished.look(crew)) is not None:
                ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
                self._hangs.tell_half_finished(sentence, [ranks[rank] for rank in crew.running()])
            return RunResult(WorkerState.HEALTHY)
        values = self._return_values(worker_group, crew)
        self._close_crew()
        return RunResult(WorkerState.SUCCEEDED, return_values=values)

    def _examine(self, crew: Crew, exited: WorkerExited) -> Failure:
        hang = self._hangs.found(exited.local_rank)
        failure = crew.failure(exited, timed_out=hang is not None)
        if hang is not None:
            failure = explain_hang(failure, hang)
        elif self._frozen.has_ended(exited.local_rank):
            failure = replace(failure, kind=Kind.TIMEOUT, message="it was stopped by a signal, and ended for that")
        return self._placed(failure)

    def _placed(self, failure: Failure) -> Failure:
        place = self._meeting.place
        return replace(
            failure,
            host=socket.gethostname(),
            node=self._worker_group.group_rank,
            round=place.round.number if place is not None else None,
            extra={**failure.extra, "shown_by": screen_name()} if self._is_shown(failure.local_rank) else failure.extra,
        )

    def _is_shown(self, local_rank: int | None) -> bool:
        """Whether a worker's stderr appears on the agent's own screen, so that a report there need not repeat it."""
        dest = self._dest
        return dest is not None and (local_rank in dest.tee_stderrs or dest.stderrs.get(local_rank or 0) == SYS_STREAM)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What went wrong with this node's workers since they were last started."""
        return tuple(self._failures.values())

    def _note_immovable(self, crew: Crew) -> bool:
        """Note the failures of workers that hang and cannot be ended; says whether there are any."""
        found = self._hangs.take_immovable()
        for hang in found:
            rank = hang.local_rank
            failure = Failure(
                Kind.TIMEOUT,
                "",
                role=self._worker_group.spec.role,
                local_rank=rank,
                rank=self._worker_group.workers[rank].global_rank,
                pid=crew.pids()[rank],
                timestamp=time.time(),
            )
            self._failures[rank] = self._placed(explain_hang(failure, hang))
        return bool(found)

    def _gather_stacks(self, local: dict[int, Stack]) -> dict[int, Stack]:
        """Add other nodes' stacks, by rank, to those of this node's workers; called in a thread, and may take a moment.

        What it returns is compared to find the rank that holds the others up, and goes into the report.
        """
        return {**ask_others(self._meeting.questions), **local}

    def get_last_progress_time(self) -> int:
        """When the watchdog last moved, in whole seconds of the wall clock; now, where there is none."""
        return self._hangs.get_last_progress_time()

    def _process_failures(
        self, group: WorkerGroup, crew: Crew, failed: list[WorkerExited]
    ) -> dict[int, ProcessFailure]:
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        return {
            ranks[exited.local_rank]: ProcessFailure(
                exited.local_rank, exited.pid, exited.exit_code, crew.error_file(exited.local_rank)
            )
            for exited in failed
        }

    def _return_values(self, group: WorkerGroup, crew: Crew) -> dict[int, Any]:
        if not callable(group.spec.entrypoint):
            return {worker.global_rank: None for worker in group.workers}
        return {worker.global_rank: crew.return_value(worker.local_rank) for worker in group.workers}

    def _cause_of(self, result: RunResult) -> Cause:
        del result
        return _as_cause(list(self._failures.values()))

    # -- stopping --------------------------------------------------------------------------------------------------

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        del worker_group
        if self._crew is not None:
            self._crew.stop(signal.SIGTERM, self._shutdown_timeout)
            self._close_crew()

    def _ask_stop(self, number: int, grace_s: float) -> bool:
        if self._crew is None:
            return True
        self._crew.ask_stop(number, grace_s)
        return self._has_stopped()

    def _has_stopped(self) -> bool:
        crew = self._crew
        if crew is None:
            return True
        for exited in crew.take_exits():
            if exited.failed:
                self._failures[exited.local_rank] = self._examine(crew, exited)
        if not crew.stopped:
            return False
        self._close_crew()
        return True

    def _late_cause(self) -> Cause | None:
        failures = list(self._failures.values())
        return _as_cause(failures) if any(failure.is_true for failure in failures) else None

    def _pass_signal(self, number: int) -> None:
        if self._crew is not None:
            self._crew.send(number)

    def _close_crew(self) -> None:
        self._hangs.forget()
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def _stop_crew(self, crew: Crew, number: int, grace_s: float) -> None:
        """Stop the workers and wait for it; a signal that comes meanwhile kills them at once."""
        crew.ask_stop(number, grace_s)
        while True:
            crew.take_exits()
            if crew.stopped:
                return
            event = self._inbox.take()
            if isinstance(event, Signalled):
                self._teller.stopping(f"received {event.name}")
                crew.ask_stop(signal.SIGKILL, 0.0)
            elif event is None:
                deadline = crew.deadline()
                self._inbox.wait(None if deadline is None else deadline - time.monotonic(), crew.fileno())

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._crew is not None:
            self._stop_crew(self._crew, death_sig, timeout)
            self._close_crew()
        self._preloading.close()
        self._hangs.close()
        if self._keeping is not None:
            self._keeping.close()
            self._keeping = None

    def _rules(self) -> AgentRules:
        return replace(super()._rules(), backoff_s=self._options.backoff_s, backoff_s_max=self._options.backoff_s_max)

    def _start_details(self) -> dict[str, Any]:
        error_files = self._dest.error_files if self._dest is not None else {}
        return {
            "pids": sorted(self._crew.pids().values()) if self._crew is not None else [],
            "logs": os.path.dirname(os.path.dirname(next(iter(error_files.values()), ""))),  # noqa: PTH120
        }

    def _failure_details(self, result: RunResult) -> list[dict[str, Any]]:
        del result
        return [
            {
                "kind": failure.kind.value,
                "rank": failure.rank,
                "local_rank": failure.local_rank,
                "pid": failure.pid,
                "exit_code": failure.exit_code,
                "message": failure.message,
            }
            for failure in self._failures.values()
        ]


def screen_name() -> str:
    """Name the screen that this process writes to, so that other nodes can tell it from their own."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _chosen_here() -> Metrics | None:
    """What this process has chosen for itself, so that a launcher of one's own need not hand it on to its workers."""
    found = installed()
    return found if isinstance(found, Metrics) else None


def _as_cause(failures: list[Failure]) -> Cause:
    verdict = root_cause(failures)
    return Cause(verdict.sentence, victim=not verdict.cause.is_true, detail=verdict.cause.to_json())
