"""Events: what happens in a run, for whoever collects such things.

    record(Event("epoch.done", EventSource.WORKER, metadata={"epoch": 3}), "console")

`configure(handler)` sends every event of the process to a handler of one's own; `--event-log-handler` and
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
from holdfast.events.destinations import close_all, flush_all, register
from holdfast.events.recording import (
    configure,
    construct_and_record_rdzv_event,
    get_logging_handler,
    record,
    record_rdzv_event,
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
