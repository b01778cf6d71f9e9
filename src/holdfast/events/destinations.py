"""Where events go: destinations by name, opened when first used and kept until the process ends.

What a flag names is a file, a socket or a stranger's code, so it gets an outbox: recording only leaves the event there.
What code hands over (`configure`, `register`) is called directly, and what it raises is reported once.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.events import choose
from holdfast.events.api import Event, EventHandler, EventSource, NullEventHandler, RdzvEvent
from holdfast.events.choose import Choice
from holdfast.facts import facts
from holdfast.outbox import Outbox
from holdfast.quantities import to_seconds

if TYPE_CHECKING:
    from datetime import timedelta

CLOSE_TIMEOUT_S = 2.0
EVENTS_WAITING_MAX = 10_000

_NOTHING: dict[str, tuple[EventHandler, ...]] = {"null": ()}


class GuardedHandler(EventHandler):
    """Calls a handler and swallows what it raises, after reporting it once."""

    def __init__(self, handler: EventHandler) -> None:
        self.handler = handler
        self._reported = False

    def record(self, event: Event) -> None:
        """Hand the event over."""
        try:
            self.handler.record(event)
        except Exception as error:  # noqa: BLE001 - a stranger's handler may raise anything
            if not self._reported:
                self._reported = True
                facts.warn(
                    "event_handler_trouble",
                    f"the event handler {type(self.handler).__name__} raised {error!r}; "
                    "it goes on being called and this is not reported again",
                )


class QueuedHandler(EventHandler):
    """Leaves events for a handler in an outbox, so that nobody waits for it."""

    def __init__(self, name: str, handler: EventHandler) -> None:
        # The thread that uses the handler also closes it.
        self._outbox: Outbox[Event] = Outbox(
            f"the event handler {name}", handler.record, items_max=EVENTS_WAITING_MAX, finish=handler.close
        )

    def record(self, event: Event) -> None:
        """Leave the event; never waits."""
        self._outbox.put(event)

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was left so far is handed over; says whether that came about in time."""
        return self._outbox.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Hand over what is left, for no longer than `timeout_s`."""
        self._outbox.close(timeout_s)


class LoggingEventHandler(EventHandler):
    """Hands events to a `logging.Handler`, serialized, as TorchElastic does."""

    def __init__(self, handler: logging.Handler) -> None:
        self.handler = handler

    def record(self, event: Event) -> None:
        """Let the handler handle the event's line."""
        self.handler.handle(logging.LogRecord("holdfast.events", logging.INFO, "", 0, event.serialize(), None, None))


class EventLoggingHandler(logging.Handler):
    """Takes serialized events as log messages, as TorchElastic's programs send them, and records them."""

    def __init__(self, destination: str) -> None:
        super().__init__()
        self.destination = destination

    def emit(self, record: logging.LogRecord) -> None:
        """Record the event in the message; any other message becomes an event with the logger's name."""
        event = _event_in(record)
        if not event.timestamp:
            event.timestamp = record.created
        send(event, self.destination)


class Destinations:
    """The destinations of this process, by name."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._registered: dict[str, EventHandler] = {}
        self._opened: dict[Choice, EventHandler] = {}
        #: Handlers that do something, by the text that named them; the default needs no look at what is installed.
        self._by_spec: dict[str, tuple[EventHandler, ...]] = dict(_NOTHING)

    def register(self, name: str, handler: EventHandler | logging.Handler) -> None:
        """Make a handler known under a name; it takes the place of an earlier one."""
        if name in ("", "null") or any(mark in name for mark in ",:"):
            raise UsageError(f"'{name}' cannot name an event handler: take any other word without commas and colons")
        if isinstance(handler, logging.Handler):
            handler = LoggingEventHandler(handler)
        with self._lock:
            self._registered[name] = GuardedHandler(handler)
            self._by_spec = dict(_NOTHING)

    def get(self, spec: str) -> tuple[EventHandler, ...]:
        """Return the handlers that a text names, opened; none for `null`."""
        known = self._by_spec.get(spec)
        return known if known is not None else self._open(spec)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every outbox is empty; says whether that came about in time."""
        deadline = time.monotonic() + timeout_s
        waited = [queued.flush(max(deadline - time.monotonic(), 0)) for queued in self._queued()]
        return all(waited)

    def close(self, timeout_s: float) -> None:
        """Hand over what is left, for no longer than `timeout_s` in all, and close what was opened."""
        deadline = time.monotonic() + timeout_s
        queued = self._queued()
        self.forget()
        for each in queued:
            each.close(max(deadline - time.monotonic(), 0))

    def forget(self) -> None:
        """Know nothing of what was opened: in a forked child the threads that serve it are gone."""
        self._lock = threading.RLock()
        self._opened = {}
        self._by_spec = dict(_NOTHING)

    def _queued(self) -> list[QueuedHandler]:
        with self._lock:
            return [handler for handler in self._opened.values() if isinstance(handler, QueuedHandler)]

    def _open(self, spec: str) -> tuple[EventHandler, ...]:
        with self._lock:
            choices = choose.parse(spec, also=self._registered)
            handlers = [self._open_one(choice) for choice in choices]
            live = tuple(each for each in handlers if not isinstance(each, NullEventHandler))
            self._by_spec[spec] = live
            return live

    def _open_one(self, choice: Choice) -> EventHandler:
        if choice.name in self._registered:
            return self._registered[choice.name]
        if choice.name == choose.RENDEZVOUS:
            return NullEventHandler()
        if choice not in self._opened:
            handler = choose.make(choice)
            null = isinstance(handler, NullEventHandler)
            self._opened[choice] = handler if null else QueuedHandler(choice.name, handler)
        return self._opened[choice]


def send(event: Event, spec: str) -> None:
    """Hand an event to the destinations that `spec` names, and to nobody else."""
    for handler in _destinations.get(spec):
        handler.record(event)


def open_all(spec: str) -> tuple[EventHandler, ...]:
    """Open what `spec` names and return those of them that do something."""
    return _destinations.get(spec)


def register(name: str, handler: EventHandler | logging.Handler) -> None:
    """Make a handler of this process a destination, for `record(event, name)`."""
    _destinations.register(name, handler)


def flush_all(timeout: float | timedelta = CLOSE_TIMEOUT_S) -> bool:
    """Wait until everything recorded so far is handed over; says whether that came about in time."""
    return _destinations.flush(to_seconds(timeout))


def close_all(timeout: float | timedelta = CLOSE_TIMEOUT_S) -> None:
    """Hand over what is left, for no longer than `timeout`, and close; also done when the process ends."""
    _destinations.close(to_seconds(timeout))


def _event_in(record: logging.LogRecord) -> Event:
    text = record.getMessage()
    with contextlib.suppress(UsageError):
        return Event.deserialize(text)
    with contextlib.suppress(UsageError):
        return RdzvEvent.deserialize(text).as_event()
    return Event(record.name, EventSource.AGENT, metadata={"message": text})


_destinations = Destinations()
os.register_at_fork(after_in_child=_destinations.forget)
atexit.register(close_all)
