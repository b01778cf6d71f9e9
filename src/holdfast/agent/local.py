"""Workers that are processes of this machine: started, watched, replaced and stopped for an agent's loop."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.agent.api import RunResult, WorkerGroup, WorkerSpec, WorkerState, seat
from holdfast.agent.driver import Agent, WorkersEvent, as_event
from holdfast.agent.environment import RoundView, WorkerView, worker_environment
from holdfast.agent.hangs import Hangs, ask_others, ask_others_still, explain_hang
from holdfast.agent.health import AgentHealth, AgentMetrics, make_health
from holdfast.agent.inbox import Inbox
from holdfast.agent.machine import SHUTDOWN_TIMEOUT_S, AgentEvent, AgentRules, Signalled, WorkersStopped
from holdfast.agent.options import LocalOptions, LocalSettings
from holdfast.agent.plans import make_log_options, make_plans
from holdfast.agent.preloading import Preloading
from holdfast.agent.round_source import Coordinated, RoundSource, rounds_of
from holdfast.agent.signals import SIGNALS_DEFAULT, SIGNALS_VARIABLE
from holdfast.agent.stalls import Frozen, HalfFinished
from holdfast.coordinator.messages import Cause, Place
from holdfast.failures import Failure, Kind, ProcessFailure
from holdfast.failures.stacks import Stack
from holdfast.failures.verdict import root_cause
from holdfast.health import LastProgress
from holdfast.metrics.api import installed
from holdfast.metrics.chosen import Metrics
from holdfast.workers import DefaultLogsSpecs, Gang, LogsDest, WorkerExited
from holdfast.workers.gangs import Gangs, stopped_by_signal
from holdfast.workers.logs import SYS_STREAM

if TYPE_CHECKING:
    from holdfast.agent.link_watch import LinkWatch
    from holdfast.agent.vault_host import VaultHost


class LocalWorkers:
    """The workers of one node, as an agent's loop sees them; a death is noticed as soon as it happens."""

    heeds_signals = True

    def __init__(
        self,
        group: WorkerGroup,
        agent: Agent,
        rounds: RoundSource,
        inbox: Inbox[AgentEvent],
        settings: LocalSettings,
        options: LocalOptions,
        metrics: AgentMetrics,
    ) -> None:
        self.group = group
        self.result = RunResult(WorkerState.UNKNOWN)
        self.gangs: Gangs | None = None
        self._agent = agent
        self._rounds = rounds
        self._inbox = inbox
        self._settings = settings
        self._options = options
        self._metrics = metrics
        self._logs_specs = settings.logs_specs or DefaultLogsSpecs()
        self._dest: LogsDest | None = None
        self._place: Place | None = None
        self._restarts = 0
        #: Whether a stop was begun and its end has not been reported.
        self._stopping = False
        #: Whether a worker of this start is known to train in process.
        self._in_process = False
        self._failures: dict[int, Failure] = {}
        #: Workers that are ended because another one of their replica has failed.
        self._ending: set[int] = set()
        self._frozen = Frozen()
        self._half_finished = HalfFinished(options.half_finished_s)
        self._preloading = Preloading(
            options.preload,
            workers=group.spec.local_world_size,
            first=options.preload_first,
            keep_s=options.keep_warm_s,
            standbys=options.standbys,
            standbys_open=options.standbys_open,
        )
        self._vault: VaultHost | None = None
        self._hangs = Hangs(options.hang, self._gather_stacks, lambda: ask_others_still(agent.calls, group))
        #: Made with the first round of several nodes.
        self._links: LinkWatch | None = None
        if agent.calls is not None:
            agent.calls.serve(self._answer, self._hangs.count_steps)

    def _answer(self, topic: str, body: str) -> str:
        """Answer another node's question about the workers here."""
        if self._links is not None and self._links.answers(topic):
            return self._links.answer(topic, body)
        return self._hangs.answer(topic, body)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What went wrong with this node's workers since they were last started."""
        return tuple(self._failures.values())

    # -- starting --------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Begin to import what workers will need, in the background, where even the first ones are forked."""
        self._preloading.attach()
        if self._preloading.comes_first:
            self._preloading.begin()

    @property
    def preloads(self) -> bool:
        """Whether what workers import is imported once, for all of them to be forked from there."""
        return self._preloading.is_asked_for

    def preload(self, *, at_once: bool) -> bool:
        """Begin these imports, now or when there is time for them; says whether the first workers wait for them."""
        if at_once or self._preloading.comes_first:
            self._preloading.begin()
        else:
            self._preloading.begin_later(time.monotonic(), workers=False)
        return self._preloading.importing

    def tell_preload(self, *, busy: bool) -> None:
        """Tell the user that the agent waits for imports."""
        self._preloading.tell(busy=busy)

    def begin(self) -> dict[str, Any]:
        """Open the journal before waiting for nodes and importing modules, so that the run can be found at once."""
        self.warm_up()
        open_folder = getattr(self._logs_specs, "open_folder", None)  # which a class of another package may not have
        folder = open_folder(self._run_id) if open_folder is not None else ""
        self._agent.observers.place_journal(folder)
        return {"logs": "" if folder == os.devnull else folder, "endpoint": str(self._rounds.endpoint or "")}

    def start(self, place: Place, restarts: int) -> dict[str, Any]:
        """Start the workers of a round."""
        seat(self.group, place)
        pids = self.launch(place, restarts)
        for worker in self.group.workers:
            worker.id = pids[worker.local_rank]
        return self.details()

    def launch(self, place: Place, restarts: int) -> dict[int, int]:
        """Start a process for each worker of the group; return their ids."""
        self._place, self._restarts = place, restarts
        envs = self._environments(place)
        self._hangs.prepare(self._run_id, self.group.spec.role, envs)
        dest = self._logs_specs.reify(envs)
        self.gangs = Gangs(self._make_gang(envs, dest))
        self._failures, self._ending, self._stopping, self._in_process = {}, set(), False, False
        self._half_finished.begin()
        self._frozen.begin(envs)
        self.gangs.start()
        self._watch(place)
        self._preloading.begin_later(time.monotonic(), workers=True)
        self._dest = dest
        self._agent.observers.place_journal(self._logs_specs.root_log_dir)
        self._metrics.keep_ranks([worker.global_rank for worker in self.group.workers])
        self.group.state = WorkerState.HEALTHY
        return self.gangs.pids()

    def details(self) -> dict[str, Any]:
        """Return further details of workers that have been started."""
        error_files = self._dest.error_files if self._dest is not None else {}
        pids = self.gangs.pids() if self.gangs is not None else {}
        return {
            "pids": [pids[local_rank] for local_rank in sorted(pids)],
            "beats": self._hangs.beats_file,
            "logs": os.path.dirname(os.path.dirname(next(iter(error_files.values()), ""))),  # noqa: PTH120
        }

    def _make_gang(self, envs: dict[int, dict[str, str]], dest: LogsDest) -> Gang:
        spec, settings = self.group.spec, self._settings
        return Gang(
            make_plans(spec, envs, settings.start_method),
            dest,
            make_log_options(spec, envs, settings.log_line_prefix_template, self._options.log_bytes_max),
            template=self._preloading.take(),
            standbys=self._preloading.standbys,
        )

    def _environments(self, place: Place) -> dict[int, dict[str, str]]:
        group, spec = self.group, self.group.spec
        view = RoundView(
            run_id=self._run_id,
            role=spec.role,
            local_world_size=spec.local_world_size,
            group_rank=group.group_rank or 0,
            group_world_size=group.group_world_size or 1,
            master_addr=group.master_addr or "",
            master_port=group.master_port or 0,
            restart_count=self._restarts,
            max_restarts=spec.max_restarts,
            signals_to_handle=self._settings.signals_to_handle or os.environ.get(SIGNALS_VARIABLE, SIGNALS_DEFAULT),
            use_agent_store=spec.rdzv_handler.use_agent_store,
            round_number=place.round.number or None,
            extra={
                **self._vault_variables(),
                **self._rounds.variables(place, spec.local_world_size),
                **self._metrics.variables(),
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

    def _vault_variables(self) -> dict[str, str]:
        if self._vault is None and self._options.vault and isinstance(self._rounds, Coordinated):
            from holdfast.agent.vault_host import VaultHost  # few launches want it, and all would wait for the import

            self._vault = VaultHost(self._rounds)
        return self._vault.variables() if self._vault is not None else {}

    # -- workers that outlive each other -----------------------------------------------------------------------------

    def trains_in_process(self) -> bool:
        """Say, once for each start, that a worker has begun to train in process; workers leave a file that says so."""
        if self._in_process or self.gangs is None or not any(map(self.gangs.is_member, self.gangs.plans)):
            return False
        self._in_process = True
        return True

    def move(self, place: Place) -> None:
        """Record that the workers, which outlived a round, are in the next one."""
        self._place = place
        seat(self.group, place)
        self._watch_links(place)

    def replace(self, restarts: int) -> tuple[list[int], str]:
        """Start a new worker in the place of each that failed; the others are not disturbed."""
        gangs, group, place = self.gangs, self.group, self._place
        assert gangs is not None
        assert place is not None
        self._restarts = restarts
        failed = sorted({mate for rank in self._failures for mate in gangs.replica(rank)} - set(gangs.running()))
        envs = {rank: env for rank, env in self._environments(place).items() if rank in failed}
        self._hangs.prepare(self._run_id, group.spec.role, envs)
        gangs.replace(self._make_gang(envs, self._logs_specs.reify(envs)))
        why, self._failures = as_cause(self.failures).sentence, {}
        self._frozen.begin(failed)
        for worker in group.workers:
            worker.id = gangs.pids()[worker.local_rank]
        group.state = WorkerState.HEALTHY
        self._watch(place)
        return [worker.global_rank for worker in group.workers if worker.local_rank in failed], why

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self, place: Place) -> None:
        """Watch workers that have just been started: all, or those that were replaced."""
        assert self.gangs is not None
        self._hangs.watch(self.group, self.gangs)
        self._watch_links(place)

    def _watch_links(self, place: Place) -> None:
        """Watch the workers' links to other nodes, where there are any."""
        calls, rounds, gangs = self._agent.calls, self._rounds, self.gangs
        if self._links is None and place.group_world_size > 1 and calls is not None and isinstance(rounds, Coordinated):
            from holdfast.agent.link_watch import LinkWatch  # a launch of one node would wait for the import

            limit_s = self._options.hang.limit_s if self._options.hang is not None else None
            self._links = LinkWatch(rounds, calls, self._inbox, limit_s, self._hangs.progress, self._take_stacks)
        if self._links is not None and gangs is not None:
            pids = gangs.pids()
            self._links.watch(place, {each.global_rank: pids[each.local_rank] for each in self.group.workers})

    def await_link(self) -> bool:
        """Ask the hosts that this node cannot talk to until they answer."""
        if self._links is not None:
            self._links.await_link()
        return self._links is not None

    def look(self, now: float) -> WorkersEvent | None:
        """Look at the workers without waiting, and return what has happened."""
        pids = self.gangs.pids().values() if self.gangs is not None else ()
        if (event := self._preloading.look(pids, now)) is not None:
            return event
        if self._stopping:
            return WorkersStopped(self._late_cause()) if self._has_stopped() else None
        if self.gangs is None:
            return None
        return self._seen(self.monitor(now))

    def _seen(self, result: RunResult) -> WorkersEvent | None:
        self.group.state = result.state
        event = as_event(result, self.cause)
        if event is not None:
            self.result = result
        return event

    def cause(self, result: RunResult) -> Cause:
        """Say why the workers failed."""
        del result
        return as_cause(self.failures)

    def monitor(self, now: float) -> RunResult:
        """Say how the workers are."""
        gangs, group = self.gangs, self.group
        assert gangs is not None
        self._end_frozen(gangs, now)
        ended = gangs.take_exits()
        # A worker that the watchdog had to end was not done, whatever its exit code says.
        failed = [exited for exited in ended if exited.failed or self._hangs.found(exited.local_rank) is not None]
        for exited in failed:
            self._failures[exited.local_rank] = self._examine(gangs, exited)
        if failed or self._ending:
            if self._end_replicas(gangs):
                return RunResult(WorkerState.HEALTHY)  # what failed is told once all that goes with it has ended
            ends = gangs.exits()
            return RunResult(
                WorkerState.FAILED, failures=self._process_failures(gangs, [ends[rank] for rank in self._failures])
            )
        if self._note_immovable(gangs):
            return RunResult(WorkerState.FAILED)
        if running := gangs.running():
            sentence = self._half_finished.look(len(gangs.exits()), len(gangs.plans), now)
            if sentence is not None:
                ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
                self._hangs.tell_half_finished(sentence, [ranks[rank] for rank in running])
            return RunResult(WorkerState.HEALTHY)
        values = self._return_values(gangs)
        self._close_gangs()
        return RunResult(WorkerState.SUCCEEDED, return_values=values)

    def wakeup(self) -> float | None:
        """Say when to look in any case."""
        times = [self._preloading.wakeup()]
        if self.gangs is not None:
            times += [self._half_finished.wakeup(), self._frozen.wakeup(), self.gangs.deadline()]
        return min((when for when in times if when is not None), default=None)

    def filenos(self) -> tuple[int, ...]:
        """Descriptors that become readable when there is something to look at."""
        found = self._preloading.filenos()
        return (*found, self.gangs.fileno(), *self._hangs.filenos()) if self.gangs is not None else found

    def get_last_progress_time(self) -> int:
        """When the watchdog last made progress, in whole seconds of the wall clock; now, if there is none."""
        moved = self._hangs.get_last_progress_time()
        return int(time.time()) if moved is None else moved

    def _end_frozen(self, gangs: Gangs, now: float) -> None:
        """End workers that others wait for while a signal has stopped them."""
        pids = gangs.pids()
        running = {pids[rank]: rank for rank in gangs.running()}
        stopped = [running[pid] for pid in stopped_by_signal(running)] if self._in_process else []
        for rank in self._frozen.look(stopped, now):
            gangs.kill(rank)

    def _end_replicas(self, gangs: Gangs) -> bool:
        """End the workers that hold one copy of a model with one that failed; says whether any still runs."""
        running = set(gangs.running())
        left = {mate for rank in self._failures for mate in gangs.replica(rank)} & running
        for rank in left - self._ending:
            gangs.kill(rank)
        self._ending = left
        return bool(left)

    # -- failures ----------------------------------------------------------------------------------------------------

    def failures_told(self) -> list[dict[str, Any]]:
        """Describe the failures that `look` has just reported."""
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

    def _late_cause(self) -> Cause | None:
        """Return a better cause that came to light while the workers were being stopped."""
        return as_cause(self.failures) if any(each.is_true for each in self.failures) else None

    def _examine(self, gangs: Gangs, exited: WorkerExited) -> Failure:
        hang = self._hangs.found(exited.local_rank)
        failure = gangs.failure(exited, timed_out=hang is not None)
        if hang is not None:
            failure = explain_hang(failure, hang)
        elif exited.local_rank in self._ending:
            failure = replace(failure, kind=Kind.STOPPED, message="ended because its replica lost a worker")
        elif self._frozen.has_ended(exited.local_rank):
            failure = replace(failure, kind=Kind.TIMEOUT, message="it was stopped by a signal, and ended for that")
        return self._placed(failure)

    def _placed(self, failure: Failure) -> Failure:
        shown = {"shown_by": screen_name()} if self._is_shown(failure.local_rank) else {}
        return replace(
            failure,
            host=socket.gethostname(),
            node=self.group.group_rank,
            round=(self._place.round.number or None) if self._place is not None else None,
            extra={**failure.extra, **shown},
        )

    def _is_shown(self, local_rank: int | None) -> bool:
        """Whether a worker's stderr appears on the agent's own screen, so that a report there need not repeat it."""
        dest = self._dest
        return dest is not None and (local_rank in dest.tee_stderrs or dest.stderrs.get(local_rank or 0) == SYS_STREAM)

    def _note_immovable(self, gangs: Gangs) -> bool:
        """Note the failures of workers that hang and cannot be ended; return whether there are any."""
        found = self._hangs.take_immovable()
        for hang in found:
            rank = hang.local_rank
            failure = Failure(
                Kind.TIMEOUT,
                "",
                role=self.group.spec.role,
                local_rank=rank,
                rank=self.group.workers[rank].global_rank,
                pid=gangs.pids()[rank],
                timestamp=time.time(),
            )
            self._failures[rank] = self._placed(explain_hang(failure, hang))
        return bool(found)

    def _process_failures(self, gangs: Gangs, failed: list[WorkerExited]) -> dict[int, ProcessFailure]:
        ranks = {worker.local_rank: worker.global_rank for worker in self.group.workers}
        return {
            ranks[exited.local_rank]: ProcessFailure(
                exited.local_rank, exited.pid, exited.exit_code, gangs.error_file(exited.local_rank)
            )
            for exited in failed
        }

    def _return_values(self, gangs: Gangs) -> dict[int, Any]:
        is_function = callable(self.group.spec.entrypoint)
        return {
            worker.global_rank: gangs.return_value(worker.local_rank) if is_function else None
            for worker in self.group.workers
        }

    def _gather_stacks(self, local: dict[int, Stack]) -> dict[int, Stack]:
        """Add other nodes' stacks, by rank, to those of this node's workers; called in a thread, and may take a moment.

        The stacks are compared to find the rank that blocks the others, and go into the report.
        """
        return {**ask_others(self._agent.calls), **local}

    def _take_stacks(self) -> dict[int, Stack]:
        return self._gather_stacks(self._hangs.take_stacks())

    # -- stopping --------------------------------------------------------------------------------------------------

    def stop(self, number: int, grace_s: float) -> None:
        """Begin to stop the workers; called again, harder."""
        self._stopping = True
        if self.gangs is not None:
            self.gangs.ask_stop(number, grace_s)

    def _has_stopped(self) -> bool:
        """Drive a stop that was begun, and say whether it is over."""
        gangs = self.gangs
        if gangs is not None:
            for exited in gangs.take_exits():
                if exited.failed:
                    self._failures[exited.local_rank] = self._examine(gangs, exited)
            if not gangs.stopped:
                return False
            self._close_gangs()
        self._stopping = False
        return True

    def wait_stopped(self) -> None:
        """Wait until a stop that was begun is over."""
        if self.gangs is not None:
            self._drive_stop(self.gangs)
        self._has_stopped()

    def send(self, number: int) -> None:
        """Pass a signal on to the workers."""
        if self.gangs is not None:
            self.gangs.send(number)

    def close(self, number: int, grace_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Stop whatever still runs, with this signal, and release everything."""
        if self.gangs is not None:
            self.gangs.ask_stop(number, grace_s)
            self._drive_stop(self.gangs)
            self._close_gangs()
        self._preloading.close()
        self._hangs.close()
        if self._links is not None:
            self._links.close()
        if self._vault is not None:
            self._vault.close()
            self._vault = None

    def _drive_stop(self, gangs: Gangs) -> None:
        """Wait until the workers have stopped; a signal that comes meanwhile kills them at once."""
        while True:
            gangs.take_exits()
            if gangs.stopped:
                return
            event = self._inbox.take()
            if isinstance(event, Signalled):
                self._agent.facts.stopping(f"received {event.name}")
                gangs.ask_stop(signal.SIGKILL, 0.0)
            elif event is None:
                deadline = gangs.deadline()
                self._inbox.wait(None if deadline is None else deadline - time.monotonic(), gangs.fileno())

    def _close_gangs(self) -> None:
        self._hangs.forget()
        if self._links is not None:
            self._links.forget()
        if self.gangs is not None:
            self.gangs.close()
            self.gangs = None

    @property
    def _run_id(self) -> str:
        return self.group.spec.rdzv_handler.get_run_id()


def make_local_agent(
    spec: WorkerSpec,
    settings: LocalSettings,
    options: LocalOptions,
    *,
    metrics: Metrics | None = None,
    health_server: Any = None,
    workers_type: Callable[..., LocalWorkers] = LocalWorkers,
) -> tuple[Agent, LocalWorkers]:
    """Make an agent whose workers are local processes, and return both."""
    group = WorkerGroup(spec)
    inbox: Inbox[AgentEvent] = Inbox()
    rounds = rounds_of(spec, settings.exit_barrier_timeout_s)
    rules = AgentRules(
        max_restarts=None if rounds.counts_restarts else spec.max_restarts,
        replaces=spec.max_restarts > 0,
        shutdown_timeout_s=settings.shutdown_timeout_s,
        exit_barrier_timeout_s=settings.exit_barrier_timeout_s,
        backoff_s=options.backoff_s,
        backoff_s_max=options.backoff_s_max,
    )
    agent = Agent(
        group,
        rounds,
        rules,
        inbox,
        signals_to_handle=settings.signals_to_handle,
        forward_signals=options.forward_signals,
    )
    its_metrics = AgentMetrics(metrics if metrics is not None else _chosen_here())
    workers = workers_type(group, agent, rounds, inbox, settings, options, its_metrics)
    agent.supervise(workers)
    if isinstance(given := getattr(health_server, "alive_callback", None), LastProgress):
        agent.pulse = given
    if health_server is not None:
        agent.health = AgentHealth(health_server, its_metrics)
    else:
        moved = workers.get_last_progress_time
        agent.health = make_health(agent, spec.role, options.health, options.health_timeout_s, its_metrics, moved)
    return agent, workers


def screen_name() -> str:
    """Name the screen that this process writes to, so that other nodes can tell it from their own."""
    return f"{socket.gethostname()}:{os.getpid()}"


def as_cause(failures: Sequence[Failure]) -> Cause:
    """Return the root cause of failures, as it is reported to the other nodes."""
    verdict = root_cause(failures)
    cause = verdict.cause
    return Cause(verdict.sentence, victim=not cause.is_true, detail=cause.to_json(), ends_job=cause.ends_job)


def _chosen_here() -> Metrics | None:
    """The metrics that this process has chosen, so that a custom launcher need not pass them to its workers."""
    found = installed()
    return found if isinstance(found, Metrics) else None
