"""Which event a fact becomes. Pure.

Facts about workers' states become the events that TorchElastic sends, with its names and its metadata. Every other fact
becomes `holdfast.<kind>` with the run, the node, the sentence and the fact's own data. A wait that repeats
every second is no event.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from holdfast.events.api import Event, EventMetadataValue, EventSource
from holdfast.facts import Fact, level_name

STATUS_PREFIX = "torchelastic.worker.status."
PREFIX = "holdfast."
#: These fields go into TorchElastic's nested `metadata`, which is JSON in a string.
_NESTED = ("local_rank", "role_rank", "role_world_size")


@dataclass(frozen=True, slots=True)
class RunContext:
    """Where events and journal lines come from: the run, the agent, and its state according to its own facts."""

    run: str
    host: str
    pid: int
    node: str = ""
    role: str = ""
    rdzv_backend: str = ""
    entrypoint: str = ""
    group_rank: int | None = None
    group_world_size: int | None = None
    restarts_used: int = 0

    def after(self, fact: Fact) -> RunContext:
        """Return the context after a fact."""
        if fact.kind != "workers_started":
            return self
        data = fact.data
        return replace(
            self,
            group_rank=data.get("group_rank", self.group_rank),
            group_world_size=data.get("group_world_size", self.group_world_size),
            restarts_used=data.get("restarts_used", self.restarts_used),
        )

    def concerns(self, fact: Fact) -> bool:
        """Whether a fact belongs to this run; a coordinator in the same process may serve others."""
        return str(fact.data.get("run", self.run)) == self.run


def event_of(fact: Fact, context: RunContext) -> Event | None:
    """Return the event for a fact, or None if it has none."""
    if fact.kind == "waiting" or not context.concerns(fact):
        return None
    if fact.kind == "worker_status":
        return _status_event(fact, context)
    metadata: dict[str, EventMetadataValue] = {
        "run_id": context.run,
        "hostname": context.host,
        "node": context.node,
        "pid": context.pid,
        "role": context.role,
        "group_rank": context.group_rank,
        "level": level_name(fact.level),
        "sentence": fact.sentence,
        "number": fact.number,
    }
    metadata.update({key: _scalar(value) for key, value in fact.data.items() if key != "run"})
    return Event(PREFIX + fact.kind, EventSource.AGENT, fact.timestamp, metadata)


def _status_event(fact: Fact, context: RunContext) -> Event:
    data = fact.data
    state = str(data.get("state", "UNKNOWN"))
    nested: dict[str, Any] = {"group_world_size": context.group_world_size, "entry_point": context.entrypoint}
    # Lists of one, as in TorchElastic.
    nested.update({key: [data[key]] for key in _NESTED if key in data})
    source = EventSource.WORKER if data.get("source") == EventSource.WORKER else EventSource.AGENT
    metadata: dict[str, EventMetadataValue] = {
        "run_id": context.run,
        "global_rank": data.get("global_rank"),
        "group_rank": data.get("group_rank", context.group_rank),
        "worker_id": _scalar(data.get("worker_id")),
        "role": data.get("role", context.role),
        "hostname": context.host,
        "state": state,
        "total_run_time": data.get("total_run_time"),
        "rdzv_backend": data.get("rdzv_backend", context.rdzv_backend),
        "raw_error": _scalar(data.get("raw_error")),
        "metadata": json.dumps(nested, default=str),
        "agent_restarts": data.get("agent_restarts", context.restarts_used),
        "duration_ms": data.get("duration_ms"),
    }
    return Event(STATUS_PREFIX + state, source, fact.timestamp, metadata)


def _scalar(value: Any) -> EventMetadataValue:
    """Return a value that metadata may hold; any other value becomes JSON in a string."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return json.dumps(value, default=str)
