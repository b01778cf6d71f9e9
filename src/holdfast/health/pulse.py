"""The pulse: when something last moved, as an alive callback."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pulse:
    """An alive callback for whoever has a loop: `beat` each time round, and be excused from waits that may be long.

    Until the first beat it counts as alive: nothing has begun that could hang. It is kept by the monotonic clock, so a
    wall clock that is set does not look like silence.
    """

    def __init__(self) -> None:
        self._moved_at: float | None = None
        self._excuses = 0
        self._guard = threading.Lock()

    def beat(self) -> None:
        """Say that it moves; callable from any thread."""
        self._moved_at = time.monotonic()

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Count as moving while inside a call that may rightly block for long, such as somebody else's rendezvous."""
        with self._guard:
            self._excuses += 1
        try:
            yield
        finally:
            self.beat()
            with self._guard:
                self._excuses -= 1

    def __call__(self) -> float:
        """Return the wall-clock time at which it last moved."""
        now, moved_at = time.monotonic(), self._moved_at
        return time.time() - (0.0 if moved_at is None or self._excuses else now - moved_at)
