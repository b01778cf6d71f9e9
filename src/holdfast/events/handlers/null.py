"""`null`: events go nowhere."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.events.api import EventHandler, NullEventHandler


def create_handler(argument: str) -> EventHandler:
    """Make the handler that ignores events."""
    if argument:
        raise UsageError(f"the event handler null takes nothing after its name, not '{argument}'")
    return NullEventHandler()
