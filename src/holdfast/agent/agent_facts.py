"""The facts of an agent, with durations, its status, and the events and metrics that are made from them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import worker_telemetry
from holdfast.agent.api import WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.machine import Outcome
from holdfast.events.journal import FILE_NAME, Journal
from holdfast.events.platform import RunContext
from holdfast.events.recording import EventFeed
from holdfast.facts import INFO, WARNING, Fact, facts
from holdfast.metrics.platform import PlatformMetrics
from holdfast.quantities import count

#: How long a wait goes on before the screen says what it is for.
WAIT_TOLD_AFTER_S = 0.5


class AgentFacts:
    """Publishes what happens to one agent's workers and remembers when.

    The agent's loop writes, other threads read the status: each value is replaced as a whole. `clock` returns monotonic
    seconds.
    """

    def __init__(self, group: WorkerGroup, clock: Callable[[], float]) -> None:
        self._group = group
        self._clock = clock
        self._begun = clock()
        self._rounds = 0
        self._asked_at: float | None = None
        #: Whether no worker runs here while a round is asked for.
        self._idle = False
        self._lost_at: float | None = None
        self._stopping_at: float | None = None
        self._restarts_used = 0
        self._waiting = ""
        self._told = ""
        self._round: int | None = None
        self._ended = ""

    # -- the start -------------------------------------------------------------------------------------------------

    def begins(self, details: dict[str, Any]) -> None:
        """The agent has started; `details` may say where its logs are and where its coordinator is."""
        spec = self._group.spec
        run, what = spec.rdzv_handler.get_run_id(), spec.get_entrypoint_name()
        logs = f"; logs in {details['logs']}" if details.get("logs") else ""
        sentence = f"agent of run {run} started: {count(spec.local_world_size, 'worker')} of {what}{logs}"
        self._tell("agent_started", sentence, {"run": run, "workers": spec.local_world_size, **details})

    # -- rounds ----------------------------------------------------------------------------------------------------

    def asking(self, *, aside: bool) -> None:
        """The agent asks for a round; `aside` while its workers keep running."""
        self._idle, self._told = not aside, ""
        if self._asked_at is None:
            self._asked_at = self._clock()

    def waits(self, sentence: Callable[[], str]) -> float | None:
        """Publish what an agent without workers waits for, once that lasts and when it changes.

        Returns the seconds after which to call again, or None if the agent does not wait.
        """
        if self._asked_at is None or not self._idle:
            return None
        self._waiting = sentence()
        if self._waiting != self._told and self._clock() - self._asked_at >= WAIT_TOLD_AFTER_S:
            self._told = self._waiting
            facts.publish(Fact("waiting", self._waiting))
        return WAIT_TOLD_AFTER_S

    def agreed(self, round_number: int | None) -> None:
        """A round was agreed."""
        took_ms = self._ms_since(self._asked_at)
        self._asked_at, self._round, self._waiting = None, round_number, ""
        self._rounds += 1
        self._tell(
            "rendezvous",
            f"agreed on {_round(round_number)} after {took_ms:.0f} ms",
            {"round": round_number, "duration_ms": took_ms, "regroup": self._rounds > 1},
        )

    def lost(self, reason: str) -> None:
        """The round is over before its work was done."""
        if self._lost_at is None:
            self._lost_at = self._clock()
            self._tell("round_lost", f"lost {_round(self._round)}: {reason}", {"round": self._round, "reason": reason})

    # -- workers ---------------------------------------------------------------------------------------------------

    def started(self, took_s: float, restarts_used: int, details: dict[str, Any]) -> None:
        """The round's workers have been started."""
        group, number = self._group, self._round or 0
        first = group.workers[0]
        down_ms = self._ms_since(self._lost_at) if self._lost_at is not None else None
        self._lost_at, self._restarts_used = None, restarts_used
        self._tell(
            "workers_started",
            self._seat(),
            {
                "round": number,
                "group_rank": group.group_rank,
                "group_world_size": group.group_world_size,
                "world_size": first.world_size,
                "ranks": [worker.global_rank for worker in group.workers],
                "duration_ms": took_s * 1000,
                "downtime_ms": down_ms,
                "restarts_used": restarts_used,
                "restarts_left": max(group.spec.max_restarts - restarts_used, 0),
                **details,
            },
        )

    def replaced(self, ranks: list[int], took_s: float, restarts_used: int, cause: str) -> None:
        """Workers that failed have been replaced; the others kept running."""
        names = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
        self._restarts_used = restarts_used
        new = [worker for worker in self._group.workers if worker.global_rank in ranks]
        data = {
            "round": self._round,
            "ranks": ranks,
            "local_ranks": [worker.local_rank for worker in new],
            "pids": [worker.id for worker in new],
            "duration_ms": took_s * 1000,
        }
        self._tell("workers_replaced", f"replaced {names}, the others go on: {cause}", {**data, "reason": cause})

    def outlived(self, reason: str) -> None:
        """The round is over, and its workers here keep running."""
        sentence = f"{_round(self._round)} is over: {reason}; the workers here keep running"
        self._tell("round_outlived", sentence, {"round": self._round, "reason": reason})

    def moved(self) -> None:
        """Workers that kept running are in the next round."""
        group, world_size = self._group, self._group.workers[0].world_size
        data = {"round": self._round, "group_world_size": group.group_world_size, "world_size": world_size}
        self._tell("workers_moved", f"{self._seat()}; the workers kept running", data)

    def _seat(self) -> str:
        group, first, last = self._group, self._group.workers[0], self._group.workers[-1]
        ranks = f"rank {first.global_rank}" if first is last else f"ranks {first.global_rank}-{last.global_rank}"
        node = f"node {group.group_rank} of {group.group_world_size}"
        return f"round {self._round or 0}: {node}, {ranks} of {first.world_size}"

    def failed(self, failures: list[dict[str, Any]]) -> None:
        """Workers of this node failed."""
        for failure in failures:
            ended = f" (exit code {failure['exit_code']})" if failure.get("exit_code") is not None else ""
            sentence = f"rank {failure['rank']} failed: {failure['message'] or failure['kind']}{ended}"
            self._tell("worker_failed", sentence, {"round": self._round, **failure})

    def stopping(self, reason: str) -> None:
        """The workers are being stopped."""
        if self._stopping_at is None:
            self._stopping_at = self._clock()
        self._tell("workers_stopping", f"stopping workers: {reason}", {"reason": reason})

    def stopped(self) -> None:
        """No worker is running any more."""
        if self._stopping_at is not None:
            took_ms = self._ms_since(self._stopping_at)
            self._stopping_at = None
            self._tell("workers_stopped", f"workers stopped after {took_ms:.0f} ms", {"duration_ms": took_ms})

    def parted(self, reason: str) -> None:
        """This node stands apart from the others of the run."""
        self._waiting = f"{reason}; this node joins again when they can talk"
        self._tell("node_apart", f"standing apart: {self._waiting}", {"round": self._round, "reason": reason}, WARNING)

    # -- the end ---------------------------------------------------------------------------------------------------

    def ended(self, outcome: Outcome, state: WorkerState, errors: dict[int, str]) -> None:
        """The agent is done; publish the state of each worker and of the agent in the form of TorchElastic's events."""
        name = "signalled" if outcome.signal else "succeeded" if outcome.succeeded else "failed"
        self._ended = outcome.reason
        seconds = self._clock() - self._begun
        for worker in self._group.workers:
            if worker.global_rank < 0:
                continue  # no round was formed yet
            rank_state = "FAILED" if worker.global_rank in errors else state.value
            self._status("WORKER", rank_state, seconds, worker.global_rank, worker.id, errors.get(worker.global_rank))
        self._status("AGENT", state.value, seconds, None, None, None if outcome.succeeded else outcome.reason)
        self._tell(
            "run_ended",
            f"{name} after {seconds:.1f} s: {outcome.reason}",
            {
                "outcome": name,
                "reason": outcome.reason,
                "restarts_used": self._restarts_used,
                "max_restarts": self._group.spec.max_restarts,
                "rounds": self._rounds,
                "duration_ms": seconds * 1000,
            },
            INFO if outcome.succeeded else WARNING,
        )

    def status(self) -> dict[str, Any]:
        """Describe the agent at this moment, as plain data without secrets."""
        group = self._group
        used, limit = self._restarts_used, group.spec.max_restarts
        return {
            "run": group.spec.rdzv_handler.get_run_id(),
            "role": group.spec.role,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "state": group.state.value,
            "round": self._round,
            "group_rank": group.group_rank,
            "group_world_size": group.group_world_size,
            "workers": [
                {"local_rank": w.local_rank, "rank": w.global_rank, "world_size": w.world_size, "pid": w.id}
                for w in list(group.workers)
            ],
            "waiting": self._waiting,
            "restarts_used": used,
            "restarts_left": max(limit - used, 0),
            "uptime_s": self._clock() - self._begun,
            "ended": self._ended or None,
        }

    def readiness(self) -> tuple[bool, str]:
        """Return whether workers of a round run here, and if not, the reason for the wait."""
        if self._group.state is WorkerState.HEALTHY:
            return True, f"in {_round(self._round)}"
        return False, self._waiting or f"the workers are {self._group.state.value}"

    def _status(
        self, source: str, state: str, seconds: float, rank: int | None, worker_id: Any, error: str | None
    ) -> None:
        data = {
            "source": source,
            "state": state,
            "global_rank": rank,
            "group_rank": self._group.group_rank,
            "worker_id": None if worker_id is None else str(worker_id),
            "raw_error": error,
            "total_run_time": int(seconds),
            "rdzv_backend": self._group.spec.rdzv_handler.get_backend(),
            "agent_restarts": self._restarts_used,
        }
        who = "the agent" if rank is None else f"rank {rank}"
        self._tell("worker_status", f"{who}: {state}", data)

    def _ms_since(self, when: float | None) -> float:
        return 0.0 if when is None else (self._clock() - when) * 1000

    def _tell(self, kind: str, sentence: str, data: dict[str, Any], level: int = INFO) -> None:
        facts.publish(Fact(kind, sentence, {"role": self._group.spec.role, **data}, level))


class Observers:
    """Everything that is made from an agent's facts; use as a context manager around its run."""

    def __init__(self, spec: WorkerSpec, node: str) -> None:
        self.context = RunContext(
            run=spec.rdzv_handler.get_run_id(),
            host=socket.gethostname(),
            pid=os.getpid(),
            node=node,
            role=spec.role,
            rdzv_backend=spec.rdzv_handler.get_backend(),
            entrypoint=spec.get_entrypoint_name(),
        )
        self._journal = Journal(None, self.context)
        self._events = EventFeed(spec.event_log_handler, self.context)
        self._metrics = PlatformMetrics(spec.role)

    def __enter__(self) -> Observers:
        worker_telemetry.agent_begins()
        self._metrics.start()
        self._events.__enter__()
        self._journal.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        self._events.__exit__()
        self._metrics.stop()
        worker_telemetry.agent_ends()

    def place_journal(self, folder: str) -> None:
        """Set the folder of the journal, once it is known."""
        if folder and folder != os.devnull:
            self._journal.place(Path(folder) / FILE_NAME)


def _round(number: int | None) -> str:
    return "a round" if number is None else f"round {number}"
