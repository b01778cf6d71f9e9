"""The outbox: hands things to somebody slow or careless without ever waiting for him.

Metrics, events and journals go to files, sockets and code of other people, which may block, raise or vanish. Whoever
puts something here only appends to a bounded queue; one background thread per outbox does the rest. What does not fit
is dropped and counted, what raises is reported once, and closing waits no longer than it is told to.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.facts import facts

T = TypeVar("T")

ITEMS_MAX = 10_000
CLOSE_TIMEOUT_S = 2.0
#: How long items gather before the thread takes them out: one wake-up then serves many.
GATHER_S = 0.05


class Outbox(Generic[T]):
    """A bounded queue and the thread that empties it into `deliver`."""

    def __init__(self, name: str, deliver: Callable[[T], None], *, items_max: int = ITEMS_MAX) -> None:
        self.name = name
        self.dropped = 0
        self.failed = 0
        self._deliver = deliver
        self._items: deque[T] = deque()
        self._items_max = items_max
        self._awake = threading.Event()
        self._empty = threading.Event()
        self._empty.set()
        self._closing = False
        self._reported: set[str] = set()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, item: T) -> None:
        """Leave an item; never waits, from any thread."""
        if len(self._items) >= self._items_max or self._closing:
            self.dropped += 1
            self._report_once("is too slow; what does not fit is dropped and counted")
            return
        self._items.append(item)
        if not self._awake.is_set():
            self._wake()

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until everything left so far is delivered; says whether that came about in time."""
        if self._items:
            self._wake()
        return self._empty.wait(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Deliver what is left, for no longer than `timeout_s`, and stop."""
        self._closing = True
        self.flush(timeout_s)
        self._awake.set()
        if self.dropped:
            facts.warn("outbox_dropped", f"{self.name}: {self.dropped} items were dropped", dropped=self.dropped)

    def _wake(self) -> None:
        with self._lock:
            self._empty.clear()
            self._awake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"holdfast {self.name}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._awake.wait()
            if not self._closing:
                time.sleep(GATHER_S)
            self._awake.clear()
            while self._items:
                self._hand_over(self._items.popleft())
            with self._lock:
                if not self._items:
                    self._empty.set()
                    if self._closing:
                        return

    def _hand_over(self, item: T) -> None:
        try:
            self._deliver(item)
        except Exception as error:  # noqa: BLE001 - a stranger's handler may raise anything
            self.failed += 1
            self._report_once(f"raised {error!r}; it goes on being called and this is not reported again")

    def _report_once(self, what: str) -> None:
        key = what[:6]
        if key not in self._reported:
            self._reported.add(key)
            facts.warn("outbox_trouble", f"{self.name} {what}", name=self.name)
