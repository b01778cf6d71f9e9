"""When a loop last made progress, as the alive callback of a health server."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class LastProgress:
    """An alive callback for a loop: call `beat` in each turn, and wrap waits that may be long in `excused`.

    Before the first beat it counts as alive: nothing has begun that could hang. It uses the monotonic clock, so setting
    the wall clock does not look like silence.
    """

    def __init__(self) -> None:
        self._moved_at: float | None = None
        self._excuses = 0
        self._guard = threading.Lock()

    def beat(self) -> None:
        """Record progress; callable from any thread."""
        self._moved_at = time.monotonic()

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Count as alive inside a call that may rightly block for long, such as a user's rendezvous."""
        with self._guard:
            self._excuses += 1
        try:
            yield
        finally:
            self.beat()
            with self._guard:
                self._excuses -= 1

    def __call__(self) -> float:
        """Return the wall-clock time of the last progress."""
        now, moved_at = time.monotonic(), self._moved_at
        return time.time() - (0.0 if moved_at is None or self._excuses else now - moved_at)
