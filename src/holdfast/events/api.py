"""Events and the interface of event handlers. Pure.

The names are those of TorchElastic; a handler written against them works here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.errors import UsageError

EventMetadataValue = str | int | float | bool | None


class EventSource(StrEnum):
    """Which process an event is about: the agent of a node, or one of its workers."""

    AGENT = "AGENT"
    WORKER = "WORKER"


class NodeState(StrEnum):
    """The state of a node in the rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class Event:
    """Something that happened, for programs that collect events.

    `timestamp` is in seconds since 1970, with a fraction: a restart takes less than a second. A
    timestamp of 0 becomes the time of recording.
    """

    name: str
    source: EventSource
    timestamp: float = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        """Return the event as one line of JSON."""
        return _dump(self)

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """Read what `serialize` wrote; an event is returned as it is."""
        if isinstance(data, Event):
            return data
        fields = _load(data, "event", {"name", "source"})
        return Event(
            name=str(fields["name"]),
            source=_member(EventSource, fields["source"]),
            timestamp=fields.get("timestamp", 0),
            metadata=fields.get("metadata") or {},
        )


@dataclass
class RdzvEvent:
    """Something that happened in a rendezvous."""

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        """Return the event as one line of JSON."""
        return _dump(self)

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """Read what `serialize` wrote; an event is returned as it is."""
        if isinstance(data, RdzvEvent):
            return data
        wanted = {"name", "run_id", "message", "hostname", "pid", "node_state"}
        fields = _load(data, "rendezvous event", wanted)
        fields["node_state"] = _member(NodeState, fields["node_state"])
        known = RdzvEvent.__dataclass_fields__
        return RdzvEvent(**{name: value for name, value in fields.items() if name in known})

    def as_event(self) -> Event:
        """Return the same as an `Event`, for handlers that take only those."""
        metadata = asdict(self)
        return Event(metadata.pop("name"), EventSource.AGENT, metadata=metadata)


class EventHandler(ABC):
    """Takes events: implement `record` and pass the handler to `configure`, or offer it as a plugin.

    It is called from one thread at a time, not always the same one.
    A handler that is chosen by name may also have `flush()`, which is called when no events are waiting.
    """

    @abstractmethod
    def record(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:  # noqa: B027 - most handlers hold nothing
        """Release files and connections; no event comes after this."""


class NullEventHandler(EventHandler):
    """Ignores every event; the default."""

    def record(self, event: Event) -> None:
        """Ignore the event."""


def _dump(event: Any) -> str:
    return json.dumps(asdict(event), default=str)


def _load(text: str, what: str, wanted: set[str]) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (TypeError, ValueError) as error:
        raise UsageError(f"this is not a serialized {what}: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"this is not a serialized {what}: it is not a JSON object")
    if missing := sorted(wanted - fields.keys()):
        raise UsageError(f"this is not a serialized {what}: it has no {', '.join(missing)}")
    return fields


def _member(kind: type[StrEnum], name: Any) -> Any:
    try:
        return kind(name)
    except ValueError:
        raise UsageError(f"'{name}' must be one of {', '.join(kind)}") from None
