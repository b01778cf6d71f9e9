"""`console`: every event as one line of JSON on stderr, as TorchElastic prints it."""

from __future__ import annotations

import sys

from holdfast.errors import UsageError
from holdfast.events.api import Event, EventHandler


class ConsoleEventHandler(EventHandler):
    """Prints events to stderr; stdout belongs to the workers."""

    def record(self, event: Event) -> None:
        """Print one event."""
        sys.stderr.write(event.serialize() + "\n")
        sys.stderr.flush()


def create_handler(argument: str) -> EventHandler:
    """Make the handler that prints events."""
    if argument:
        raise UsageError(f"the event handler console takes nothing after its name, not '{argument}'")
    return ConsoleEventHandler()
