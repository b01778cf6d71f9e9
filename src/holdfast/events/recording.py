"""Recording events: to the destinations that a call names, and to the handler that the program configured.

Neither disturbs the caller. A destination that is named by text (`jsonl:PATH`) is a file, a socket or a plugin, so it
is opened once and used through a queue. A handler that is given as an object (`configure`, `register`) is called
directly, from one thread at a time, and the first exception that it raises is reported. An unknown name is the
caller's mistake and raises.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from holdfast import sinks
from holdfast.errors import UsageError
from holdfast.events.api import Event, EventHandler, EventSource, NodeState, NullEventHandler, RdzvEvent
from holdfast.events.platform import RunContext, event_of
from holdfast.facts import Fact, facts
from holdfast.outbox import CLOSE_TIMEOUT_S, Outbox
from holdfast.quantities import to_seconds
from holdfast.sinks import Choice, Guarded, Queued

if TYPE_CHECKING:
    from datetime import timedelta

NOUN = "event handler"
KIND = sinks.Kind(NOUN, "holdfast.events", "record")
VARIABLE = "HOLDFAST_EVENTS"
#: Where TorchElastic sends the events of its rendezvous: nowhere, unless a handler of this name is registered.
RENDEZVOUS = "dynamic_rendezvous"
EVENTS_WAITING_MAX = 10_000

_Take = Callable[[Event], None]


def parse(spec: str, also: Iterable[str] = ()) -> list[Choice]:
    """Read `NAME[:ARGUMENT][,NAME[:ARGUMENT]...]`; names are those of plugins and those in `also`."""
    choices = KIND.parse([spec])
    if not choices:
        raise UsageError(f"'{spec}' names no event handler; write null for none")
    known = {*also, RENDEZVOUS}
    for choice in choices:
        if choice.name not in known:
            KIND.find(choice, known)
    return choices


def spec_from(flag: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the flag, else $HOLDFAST_EVENTS, else `null`; raises `UsageError` for names that do not exist."""
    spec = flag or environ.get(VARIABLE) or "null"
    try:
        parse(spec)
    except UsageError as error:
        raise UsageError(f"{'--event-log-handler' if flag else '$' + VARIABLE}: {error}") from None
    return spec


# -- destinations --------------------------------------------------------------------------------------------


class Destinations:
    """The destinations of this process by name, opened when first used and kept until the process ends."""

    def __init__(self) -> None:
        self._registered: dict[str, _Take] = {}
        self._opened: dict[Choice, Queued[Event] | None]
        #: By the text that named them; the default needs no look at the plugins.
        self._by_spec: dict[str, tuple[_Take, ...]]
        self.forget()

    def register(self, name: str, handler: EventHandler | logging.Handler) -> None:
        """Make a handler known under a name; it replaces an earlier one."""
        if name in ("", "null") or any(mark in name for mark in ",:"):
            raise UsageError(f"'{name}' cannot name an event handler: use any other word without commas and colons")
        take = _log_with(handler) if isinstance(handler, logging.Handler) else handler.record
        with self._lock:
            self._registered[name] = Guarded(NOUN, handler, _OneAtATime(take))
            self._by_spec = {"null": ()}

    def get(self, spec: str) -> tuple[_Take, ...]:
        """Open the destinations that a text names, and return what takes their events; nothing for `null`."""
        known = self._by_spec.get(spec)
        return known if known is not None else self._open(spec)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every queue is empty; return whether that took no longer than `timeout_s`."""
        return sinks.flush_all(self._queues(), timeout_s)

    def close(self, timeout_s: float) -> None:
        """Deliver the rest, within `timeout_s` in all, and close the destinations that were opened."""
        queues = self._queues()
        self.forget()
        sinks.close_all(queues, timeout_s)

    def forget(self) -> None:
        """Forget what was opened: in a forked child the threads of the queues are gone."""
        self._lock = threading.RLock()
        self._opened = {}
        self._by_spec = {"null": ()}

    def _queues(self) -> list[Queued[Event]]:
        with self._lock:
            return [queue for queue in self._opened.values() if queue is not None]

    def _open(self, spec: str) -> tuple[_Take, ...]:
        with self._lock:
            takes = [self._open_one(choice) for choice in parse(spec, also=self._registered)]
            self._by_spec[spec] = live = tuple(take for take in takes if take is not None)
            return live

    def _open_one(self, choice: Choice) -> _Take | None:
        if choice.name in self._registered:
            return self._registered[choice.name]
        if choice.name == RENDEZVOUS:
            return None
        if choice not in self._opened:
            handler = KIND.make(choice)
            name = f"the event handler {choice.name}"
            self._opened[choice] = (
                None
                if isinstance(handler, NullEventHandler)
                else Queued(name, _record, handler=handler, items_max=EVENTS_WAITING_MAX)
            )
        queue = self._opened[choice]
        return None if queue is None else queue.put


class _OneAtATime:
    """Calls a handler from one thread at a time: the feed of a run and the program itself may both have an event."""

    def __init__(self, take: _Take) -> None:
        self._take = take
        self.renew()
        _serial.add(self)

    def renew(self) -> None:
        """Take a fresh lock: in a forked child, the thread that held the old one is gone."""
        self._lock = threading.RLock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._take(event)


_serial: WeakSet[_OneAtATime] = WeakSet()


def _renew_locks() -> None:
    for each in list(_serial):
        each.renew()


def _record(handler: EventHandler, event: Event) -> None:
    handler.record(event)


def _log_with(handler: logging.Handler) -> _Take:
    """Return a function that hands events to a `logging.Handler`, serialized, as TorchElastic does."""

    def take(event: Event) -> None:
        handler.handle(logging.LogRecord("holdfast.events", logging.INFO, "", 0, event.serialize(), None, None))

    return take


_destinations = Destinations()
_configured: Guarded[Event] | None = None
_logging_handlers: dict[str, logging.Handler] = {}


def register(name: str, handler: EventHandler | logging.Handler) -> None:
    """Make a handler of this process a destination, for `record(event, name)`."""
    _destinations.register(name, handler)


def flush_all(timeout: float | timedelta = CLOSE_TIMEOUT_S) -> bool:
    """Wait until every event so far is delivered; return whether that took no longer than `timeout`."""
    return _destinations.flush(to_seconds(timeout))


def close_all(timeout: float | timedelta = CLOSE_TIMEOUT_S) -> None:
    """Deliver the rest, within `timeout`, and close every destination; also done when the process ends."""
    _destinations.close(to_seconds(timeout))


os.register_at_fork(after_in_child=_destinations.forget)
os.register_at_fork(after_in_child=_renew_locks)
atexit.register(close_all)


# -- recording -----------------------------------------------------------------------------------------------


def configure(handler: EventHandler) -> None:
    """Send every event of this process to `handler` from now on, whatever its destination."""
    global _configured
    if not callable(getattr(handler, "record", None)):
        raise UsageError(f"{handler!r} is not an EventHandler: it has no record(event)")
    _configured = None if isinstance(handler, NullEventHandler) else Guarded(NOUN, handler, _OneAtATime(handler.record))


def record(event: Event, destination: str = "null") -> None:
    """Record an event: to `destination`, as in `console` or `jsonl:PATH,console`, and to the configured handler."""
    configured = _configured
    takes = _destinations.get(destination)
    if configured is None and not takes:
        return
    if not event.timestamp:
        event = replace(event, timestamp=time.time())
    for take in takes:
        take(event)
    if configured is not None:
        configured(event)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Record an event of a rendezvous: to the destination `dynamic_rendezvous` and to the configured handler."""
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
    """Record an event of a rendezvous with this host and process filled in; costs nothing while nothing takes it.

    The default name is that of the calling function. The event of a failed node carries the current traceback.
    """
    if _configured is None and not _destinations.get(RENDEZVOUS):
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


def _caller() -> str:
    """Name the function that called the one that calls this."""
    code = sys._getframe(2).f_code
    return f"{Path(code.co_filename).name}:{code.co_name}"


class EventLoggingHandler(logging.Handler):
    """Records serialized events that arrive as log messages, as TorchElastic's programs send them."""

    def __init__(self, destination: str) -> None:
        super().__init__()
        self.destination = destination

    def emit(self, record: logging.LogRecord) -> None:
        """Record the event in the message; any other message becomes an event with the logger's name."""
        event = _event_in(record)
        if not event.timestamp:
            event.timestamp = record.created
        for take in _destinations.get(self.destination):
            take(event)


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return a `logging.Handler` that records serialized events at `destination`; a `NullHandler` for `null`."""
    if not _destinations.get(destination):
        return logging.NullHandler()
    return _logging_handlers.setdefault(destination, EventLoggingHandler(destination))


def _event_in(record: logging.LogRecord) -> Event:
    text = record.getMessage()
    with contextlib.suppress(UsageError):
        return Event.deserialize(text)
    with contextlib.suppress(UsageError):
        return RdzvEvent.deserialize(text).as_event()
    return Event(record.name, EventSource.AGENT, metadata={"message": text})


class EventFeed:
    """Records an event for every fact of this process; use as a context manager around a run.

    A thread of its own records them, so that a configured handler that blocks does not hold up the agent.
    """

    def __init__(self, spec: str, context: RunContext) -> None:
        self._context = context
        self._outbox: Outbox[Event] = Outbox("the events of this run", lambda event: record(event, spec))
        self._process = os.getpid()
        self._stop: Callable[[], None] | None = None

    def __enter__(self) -> EventFeed:
        self._stop = facts.listen(self._on_fact)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None
        self._outbox.close()

    def _on_fact(self, fact: Fact) -> None:
        if os.getpid() != self._process:
            return  # a worker that was forked from this process
        self._context = self._context.after(fact)
        event = event_of(fact, self._context)
        if event is not None:
            self._outbox.put(event)
