"""Platform metrics: facts become values of the group `torchelastic`; `holdfast.metrics.table` says which."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from holdfast.facts import Fact, FactBook, facts
from holdfast.metrics.api import PLATFORM_GROUP, MetricStream, getStream
from holdfast.metrics.table import TABLE, Row, metrics_of, rows_of

__all__ = ["TABLE", "PlatformMetrics", "Row", "metrics_of"]


class PlatformMetrics:
    """Listens to the facts of this process and adds the metrics that they give, from `start` to `stop`."""

    def __init__(self, role: str = "default", book: FactBook = facts, stream: MetricStream | None = None) -> None:
        self._role = role
        self._book = book
        self._stream = stream or getStream(PLATFORM_GROUP)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        """Start listening."""
        if self._stop is None:
            self._stop = self._book.listen(self.take)

    def stop(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def take(self, fact: Fact) -> None:
        """Add the metrics that one fact gives."""
        for name, value, row in rows_of(fact, self._role):
            self._stream.add_value(name, self._count(name) if row.counts else value)

    def _count(self, name: str) -> int:
        with self._lock:  # facts come from any thread
            self._counts[name] += 1
            return self._counts[name]
