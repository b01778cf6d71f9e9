"""Recording events, both ways that people know.

An event goes to the destinations that the call names (TorchElastic's way) and to the handler that was configured (the
way of a launcher of one's own). Neither disturbs the caller: what is named by a flag has an outbox, and what raises is
reported once. A name that nobody knows is the caller's mistake and raises.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.events.api import Event, EventHandler, NodeState, NullEventHandler, RdzvEvent
from holdfast.events.choose import RENDEZVOUS
from holdfast.events.destinations import EventLoggingHandler, GuardedHandler, open_all, send

_configured: EventHandler | None = None
_logging_handlers: dict[str, logging.Handler] = {}


def configure(handler: EventHandler) -> None:
    """Send every event of this process to `handler` from now on, whatever its destination."""
    global _configured
    if not callable(getattr(handler, "record", None)):
        raise UsageError(f"{handler!r} is no EventHandler: it has no record(event)")
    _configured = None if isinstance(handler, NullEventHandler) else GuardedHandler(handler)


def record(event: Event, destination: str = "null") -> None:
    """Record an event: to `destination`, as in `console` or `jsonl:PATH,console`, and to the configured handler."""
    configured = _configured
    if configured is None and not open_all(destination):
        return
    if not event.timestamp:
        event = replace(event, timestamp=time.time())
    send(event, destination)
    if configured is not None:
        configured.record(event)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Record what happened in a rendezvous: to the destination `dynamic_rendezvous` and to the configured handler."""
    record(event.as_event(), RENDEZVOUS)


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Record what happened in a rendezvous, filling in who and where; costs nothing while nobody listens.

    Without a name, that of the calling function is used. A failed node's event carries the traceback of the
    moment.
    """
    if _configured is None and not open_all(RENDEZVOUS):
        return
    failing = node_state == NodeState.FAILED and sys.exc_info()[0] is not None
    record_rdzv_event(
        RdzvEvent(
            name=name or _caller(),
            run_id=run_id,
            message=message,
            hostname=hostname or socket.gethostname(),
            pid=os.getpid() if pid is None else pid,
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=traceback.format_exc() if failing else "",
        )
    )


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return a `logging.Handler` that records serialized events at `destination`; a `NullHandler` for what is null."""
    if not open_all(destination):
        return logging.NullHandler()
    return _logging_handlers.setdefault(destination, EventLoggingHandler(destination))


def _caller() -> str:
    """Name the function that called the one that calls this."""
    code = sys._getframe(2).f_code
    return f"{Path(code.co_filename).name}:{code.co_name}"
