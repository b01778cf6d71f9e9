"""The events that a launcher written for TorchElastic asks its agent for and records itself.

An agent of ours tells its own states as facts, which become the same events; these are for launchers of your own.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.agent.agent_facts import Observers
from holdfast.agent.api import Worker, WorkerGroup
from holdfast.agent.driver import Agent
from holdfast.events import record
from holdfast.events.api import Event, EventSource
from holdfast.events.platform import event_of
from holdfast.facts import Fact


class StatusEvents:
    """Makes events of the agent's state, with TorchElastic's names and metadata."""

    _worker_group: WorkerGroup
    _observers: Observers
    _agent: Agent
    _begun: float
    _total_execution_time: int

    def get_event_succeeded(self) -> Event:
        """Return the event of an agent whose run has succeeded."""
        return self._construct_event("SUCCEEDED", EventSource.AGENT)

    def get_event_failed(self) -> Event:
        """Return the event of an agent whose run has failed with the exception that is being handled."""
        return self._construct_event("FAILED", EventSource.AGENT, raw_error=traceback.format_exc())

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record how long something took, as an event of this name."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            took_ms = (time.perf_counter() - begun) * 1000
            record(
                self._construct_event(state, EventSource.AGENT, duration_ms=took_ms),
                self._worker_group.spec.event_log_handler,
            )

    def _construct_event(
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        """Make an event of the agent's state, or of a worker's."""
        group = self._worker_group
        data: dict[str, Any] = {
            "source": source,
            "state": state,
            "group_rank": group.group_rank,
            "raw_error": raw_error,
            "duration_ms": duration_ms,
            "total_run_time": self._total_execution_time or int(time.monotonic() - self._begun),
            "agent_restarts": self._agent.machine.restarts,
        }
        if worker is not None:
            data |= {
                "global_rank": worker.global_rank,
                "worker_id": str(worker.id),
                "local_rank": worker.local_rank,
                "role_rank": worker.role_rank,
                "role_world_size": worker.role_world_size,
            }
        event = event_of(Fact("worker_status", state, data), self._observers.context)
        assert event is not None  # a worker's state always is one
        for key, value in (("exit_code", exit_code), ("worker_pid", worker_pid)):
            if value is not None:
                event.metadata[key] = value
        return event
