"""Facts of this process, recorded as events."""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.events.api import Event
from holdfast.events.context import RunContext
from holdfast.events.platform import event_of
from holdfast.events.recording import record
from holdfast.facts import Fact, facts
from holdfast.outbox import Outbox


class EventFeed:
    """Records an event for every fact; use as a context manager around a run.

    Events are recorded by a thread of their own, so that not even a configured handler that blocks holds the agent up.
    """

    def __init__(self, spec: str, context: RunContext) -> None:
        self._spec = spec
        self._context = context
        self._outbox: Outbox[Event] = Outbox("the events of this run", lambda event: record(event, self._spec))
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
            return  # a worker that was forked from us has no part in this
        self._context = self._context.after(fact)
        event = event_of(fact, self._context)
        if event is not None:
            self._outbox.put(event)
