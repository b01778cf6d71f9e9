"""Events: what happens in a run, for programs that collect it.

    record(Event("epoch.done", EventSource.WORKER, metadata={"epoch": 3}), "console")

`configure(handler)` sends every event of the process to a handler of your own; `--event-log-handler` and
$HOLDFAST_EVENTS choose among `null`, `console`, `jsonl:PATH`, `otlp:ENDPOINT` and what plugins add.
"""

from __future__ import annotations

from holdfast.events.api import (
    Event,
    EventHandler,
    EventMetadataValue,
    EventSource,
    NodeState,
    NullEventHandler,
    RdzvEvent,
)
from holdfast.events.recording import (
    close_all,
    configure,
    construct_and_record_rdzv_event,
    flush_all,
    get_logging_handler,
    record,
    record_rdzv_event,
    register,
)

__all__ = [
    "Event",
    "EventHandler",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "NullEventHandler",
    "RdzvEvent",
    "close_all",
    "configure",
    "construct_and_record_rdzv_event",
    "flush_all",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
    "register",
]
