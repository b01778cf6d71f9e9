"""`jsonl:PATH`: every event as one line of JSON at the end of a file, which several processes may share."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.events.api import Event, EventHandler
from holdfast.events.linefile import LineFile


class JsonlEventHandler(EventHandler):
    """Appends events to a file."""

    def __init__(self, path: str) -> None:
        try:
            self._file = LineFile(path)
        except OSError as error:
            raise UsageError(f"the event handler jsonl cannot write {path}: {error.strerror}") from None

    def record(self, event: Event) -> None:
        """Append one event."""
        self._file.append(event.serialize().encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def create_handler(argument: str) -> EventHandler:
    """Make the handler that appends events to the file `argument`."""
    if not argument:
        raise UsageError("the event handler jsonl needs a file: write jsonl:PATH")
    return JsonlEventHandler(argument)
