"""Launching from Python: a config, an entrypoint, and the results by rank."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.agent.api import MAX_RESTARTS, MONITOR_INTERVAL_S, RunResult, WorkerSpec, WorkerState
from holdfast.agent.driver import Agent
from holdfast.agent.local import LocalWorkers, make_local_agent
from holdfast.agent.machine import EXIT_BARRIER_TIMEOUT_S, SHUTDOWN_TIMEOUT_S, Outcome
from holdfast.agent.options import LocalOptions, LocalSettings
from holdfast.agent.round_source import is_source
from holdfast.errors import SignalError, UsageError
from holdfast.events import close_all as close_events
from holdfast.facts import facts
from holdfast.failures import ChildFailedError, ProcessFailure
from holdfast.failures.failure import Failure, Kind
from holdfast.failures.verdict import Verdict
from holdfast.launcher.check import check
from holdfast.metrics.chosen import Metrics, configure_from
from holdfast.quantities import parse_duration
from holdfast.rendezvous import RendezvousHandler, RendezvousParameters, get_rendezvous_handler
from holdfast.workers import DefaultLogsSpecs, LogsSpecs, Module, NumaOptions, Program, Script
from holdfast.workers.pump import wait_output

#: How long the workers' last lines may take to be read after a signal.
OUTPUT_TIMEOUT_S = 1.0
SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
#: Tells a scheduler that starting the job again would not help.
CRASH_LOOP_EXIT_CODE = 93

Entrypoint = Callable[..., Any] | str | Script | Module | Program


@dataclass
class LaunchConfig:
    """Everything that one node's agent needs to know, with TorchElastic's names and defaults.

    Our additions: `rdzv_backend` is the native one by default, `exit_barrier_timeout`, `metrics` and `local_options`.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "holdfast"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: float = -1
    max_restarts: int = MAX_RESTARTS
    monitor_interval: float = MONITOR_INTERVAL_S
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: NumaOptions | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None
    exit_barrier_timeout: float = EXIT_BARRIER_TIMEOUT_S
    #: Where metrics go, as `--metrics` has it: `console`, `my_app=jsonl:PATH`.
    metrics: tuple[str, ...] = ()
    local_options: LocalOptions = field(default_factory=LocalOptions)

    def __post_init__(self) -> None:
        check(self)
        if self.rdzv_timeout != -1:
            self.rdzv_configs = {"timeout": self.rdzv_timeout, **self.rdzv_configs}
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()


@dataclass(frozen=True)
class LaunchReport:
    """The result of a launch: the workers' results, the agent's outcome, and the root cause if there was one."""

    result: RunResult
    outcome: Outcome
    verdict: Verdict | None = None
    #: The run's log folder on this node; empty if there is none.
    logs: str = ""
    #: Whether the root cause is a worker of this node.
    is_ours: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code for a launcher: 0, the root cause's own code, 128+n for a signal, 93 for a crash loop."""
        if self.outcome.signal:
            return 128 + self.outcome.signal
        if self.outcome.crash_loop:
            return CRASH_LOOP_EXIT_CODE
        if not self.result.is_failed():
            return 0
        return self.verdict.exit_code if self.verdict is not None else 1


class elastic_launch:  # noqa: N801 - the name that users know
    """Runs a function on every worker of every node: `elastic_launch(config, fn)(*args)` returns results by rank."""

    def __init__(self, config: LaunchConfig, entrypoint: Entrypoint, health_check_server: Any = None) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run, and return what each worker of this node returned, by global rank."""
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig, entrypoint: Entrypoint | None, args: list[Any], health_check_server: Any = None
) -> dict[int, Any]:
    """Run one node's agent to its end and return its workers' results by global rank.

    Raises `ChildFailedError` if workers failed, and `SignalError` if a signal ended it.
    """
    return results_of(run_agent(config, entrypoint, args, health_check_server), _name(entrypoint))


def results_of(report: LaunchReport, name: str) -> dict[int, Any]:
    """Return the workers' results by global rank; raises as `launch_agent` does, in the name of what was run."""
    if report.outcome.signal:
        import signal

        raise SignalError(report.outcome.reason, signal.Signals(report.outcome.signal))
    if report.result.is_failed():
        raise ChildFailedError(name, report.result.failures or _failures(report))
    return report.result.return_values


def run_agent(
    config: LaunchConfig, entrypoint: Entrypoint | None, args: list[Any], health_check_server: Any = None
) -> LaunchReport:
    """Run one node's agent to its end and return a report; only errors that keep it from starting are raised."""
    while (report := _run_once(config, entrypoint, args, health_check_server)).outcome.rejoins:
        pass  # it stood apart from nodes that it could not talk to, and joins the run again
    return report


def _run_once(
    config: LaunchConfig, entrypoint: Entrypoint | None, args: list[Any], health_check_server: Any
) -> LaunchReport:
    handler = _make_handler(config)
    if config.local_options.invitation:
        facts.warn("meeting_place", config.local_options.invitation)
    agent: Agent | None = None
    metrics = _choose_metrics(config, handler)
    try:
        agent, workers = _make_agent(config, entrypoint, args, handler, health_check_server, metrics)
        workers.warm_up()
        try:
            result = agent.run()
        except SignalError as exception:
            outcome = Outcome(succeeded=False, reason=str(exception), signal=int(exception.sigval))
            return LaunchReport(RunResult(WorkerState.STOPPED), outcome, logs=log_folder(config.logs_specs))
        outcome = agent.outcome or Outcome(succeeded=not result.is_failed(), reason="left")
        verdict = _verdict(outcome, workers.failures)
        is_ours = verdict is not None and any(_is_same(verdict.cause, each) for each in workers.failures)
        return LaunchReport(result, outcome, verdict, log_folder(config.logs_specs), is_ours)
    finally:
        _release(handler, agent)
        if metrics is not None:
            metrics.close()
        close_events()
        ended_well = agent is not None and agent.outcome is not None and not agent.outcome.signal
        wait_output(None if ended_well else OUTPUT_TIMEOUT_S)


def _choose_metrics(config: LaunchConfig, handler: RendezvousHandler) -> Metrics | None:
    """Open the sinks that the launch asks for; without any, what the program has configured stays as it is."""
    chosen = config.metrics or tuple(filter(None, [config.metrics_cfg.get("sinks", "")]))
    if not chosen:
        return None
    return configure_from(chosen, run_id=handler.get_run_id(), role=config.role, node=socket.gethostname())


def _make_handler(config: LaunchConfig) -> RendezvousHandler:
    return get_rendezvous_handler(
        RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id or secrets.token_hex(8),
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            **config.rdzv_configs,
        )
    )


def _make_agent(
    config: LaunchConfig,
    entrypoint: Entrypoint | None,
    args: list[Any],
    handler: RendezvousHandler,
    health_check_server: Any,
    metrics: Metrics | None,
) -> tuple[Agent, LocalWorkers]:
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        rdzv_handler=handler,
        entrypoint=entrypoint,
        args=tuple(args),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )
    settings = LocalSettings(
        config.logs_specs,
        config.start_method,
        config.exit_barrier_timeout,
        config.log_line_prefix_template,
        shutdown_timeout(config),
        config.signals_to_handle,
    )
    return make_local_agent(spec, settings, config.local_options, metrics=metrics, health_server=health_check_server)


def shutdown_timeout(config: LaunchConfig, environ: Mapping[str, str] = os.environ) -> float:
    """Return how long workers get from SIGTERM to SIGKILL: the config's, else the variable's that torchrun reads."""
    text = environ.get(SHUTDOWN_VARIABLE, "")
    if config.shutdown_timeout is not None or not text:
        return SHUTDOWN_TIMEOUT_S if config.shutdown_timeout is None else config.shutdown_timeout
    try:
        return parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{SHUTDOWN_VARIABLE}: {error}") from None


def _release(handler: RendezvousHandler, agent: Agent | None) -> None:
    """Release the rendezvous: leave ours; shut any other down, unless a signal ended only this node."""
    source: object = agent.rounds if agent is not None else handler
    if is_source(source):
        source.release(signalled=bool(agent is not None and agent.outcome is not None and agent.outcome.signal))
    else:
        handler.shutdown()


def log_folder(logs: LogsSpecs | None) -> str:
    """Return the folder that a run's logs are in, or nothing if none was made."""
    try:
        folder = logs.root_log_dir if logs is not None else ""
    except UsageError:  # no attempt was made yet
        return ""
    return "" if folder == os.devnull else folder


def _verdict(outcome: Outcome, failures: Sequence[Failure]) -> Verdict | None:
    """Return the root cause, which may be another node's, and what else failed on this node."""
    if outcome.cause is None or not outcome.cause.detail:
        return None
    cause = Failure.from_json(outcome.cause.detail)
    others = [each for each in failures if each.kind is not Kind.STOPPED and not _is_same(cause, each)]
    return Verdict(cause, tuple(others))


def _is_same(one: Failure, other: Failure) -> bool:
    return (one.host, one.pid, one.rank) == (other.host, other.pid, other.rank)


def _failures(report: LaunchReport) -> dict[int, ProcessFailure]:
    """The root cause of another node, in the form that callers know."""
    if report.verdict is None:
        return {-1: ProcessFailure(-1, 0, 1, "")}
    cause = report.verdict.cause
    return {
        cause.rank or 0: ProcessFailure(cause.local_rank or 0, cause.pid or 0, cause.exit_code or 1, cause.error_file)
    }


def _name(entrypoint: Entrypoint | None) -> str:
    match entrypoint:
        case Script():
            return entrypoint.path
        case Module():
            return entrypoint.name
        case Program():
            return entrypoint.argv[0]
        case str():
            return entrypoint
    return getattr(entrypoint, "__qualname__", str(entrypoint))
