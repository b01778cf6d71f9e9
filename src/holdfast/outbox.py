"""The outbox: a bounded queue and a thread in front of a slow consumer.

Metrics, events and journals go to files, sockets and user code, which may block, raise or vanish. Callers only append
to a bounded queue; one background thread per outbox delivers. Items that do not fit are dropped and counted, the first
exception is reported, and closing has a time limit.

After a fork the child has the outbox but not its thread: it starts with an empty queue, and the parent delivers what
was queued before. `_idle` is true only while the thread sleeps or is about to look at the queue once more; a caller
that appends and finds it true rings the bell. One ring too many costs an empty turn, and rings cannot be lost.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from holdfast.facts import facts
from holdfast.threads import start_thread

T = TypeVar("T")

ITEMS_MAX = 10_000
CLOSE_TIMEOUT_S = 2.0
#: How long items gather before the thread delivers them: one wake-up then serves many.
GATHER_S = 0.05

_outboxes: weakref.WeakSet[Outbox[object]] = weakref.WeakSet()


class Outbox(Generic[T]):
    """A bounded queue and the thread that empties it into `deliver`.

    The thread calls `settle` whenever the queue is empty, and `finish` once, at the end. Their exceptions are reported
    as those of `deliver` are.
    """

    def __init__(
        self,
        name: str,
        deliver: Callable[[T], None],
        *,
        items_max: int = ITEMS_MAX,
        settle: Callable[[], None] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.gather_s = GATHER_S
        self._deliver = deliver
        self._settle = settle
        self._finish = finish
        self._items_max = items_max
        self._begin()
        _outboxes.add(self)  # type: ignore[arg-type]  # the set does not care what is delivered

    def _begin(self) -> None:
        self.dropped = 0
        self.failed = 0
        self._items: deque[T | _Mark] = deque()
        self._room = self._items_max
        #: With this many items the thread stops waiting for more.
        self._hasty = self._items_max // 2
        self._hurried = False
        self._idle = True
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        self._ended = threading.Event()
        self._reported: set[str] = set()
        self._thread: threading.Thread | None = None
        # Reentrant, because a signal handler or a finaliser may put something while this thread holds it.
        self._lock = threading.RLock()

    def put(self, item: T) -> None:
        """Append an item, from any thread; never waits."""
        waiting = len(self._items)
        if waiting >= self._hasty and not self._has_room(waiting):
            return
        self._items.append(item)
        if self._idle:
            self._wake()

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until everything so far is delivered; return whether that took no longer than `timeout_s`."""
        if self._thread is None and not self._items:
            return True
        if self._closed or self._thread is threading.current_thread():
            return self._ended.is_set()
        mark = _Mark()
        self._items.append(mark)
        return self._hurry() and mark.wait(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Deliver the rest, within `timeout_s`, and stop; return whether everything was delivered."""
        with self._lock:
            if self._closed:
                return self._ended.is_set()
            self._closed = True
            self._room = self._hasty = 0
        if self._thread is None and self._finish is None and not self._items:
            self._ended.set()
        elif self._hurry():
            self._ended.wait(timeout_s)
        with self._lock:
            self.dropped += sum(not isinstance(item, _Mark) for item in self._items)
            self._items.clear()
        if self.dropped:
            facts.warn(
                "outbox_dropped",
                f"{self.name}: {self.dropped} items were dropped",
                name=self.name,
                dropped=self.dropped,
            )
        return self._ended.is_set() and not self.dropped

    # -- on the caller's side --------------------------------------------------------------------------------

    def _has_room(self, waiting: int) -> bool:
        if waiting < self._room:
            if not self._hurried:
                self._hurried = True
                self._bell.put(None)
            return True
        with self._lock:
            self.dropped += 1
        if not self._closed:
            self._report_once("slow", "is too slow; items that do not fit are dropped and counted")
        return False

    def _hurry(self) -> bool:
        """Make the thread empty the queue now; return whether there is a thread."""
        self._wake()
        self._bell.put(None)  # the first ring wakes it, the second ends the gathering
        return self._thread is not None

    def _wake(self) -> None:
        self._idle = False
        if self._thread is None:
            self._start()
        self._bell.put(None)

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            try:
                thread = start_thread(self._run, f"holdfast {self.name}", self._on_death)
            except RuntimeError as error:  # no more threads are allowed, or the interpreter is shutting down
                trouble = error
            else:
                self._thread = thread
                return
        self._idle = True  # the next item tries again
        self._report_once("thread", f"cannot start its thread: {trouble}")

    # -- on the thread ---------------------------------------------------------------------------------------

    def _on_death(self, _: BaseException) -> None:
        """Start another thread for the rest, or with the next item; a close that waits returns."""
        with self._lock:
            self._thread = None
            self._idle = True
            if self._closed:
                self._ended.set()
            elif self._items:
                self._wake()

    def _run(self) -> None:
        while True:
            self._bell.get()
            if not self._closed:
                self._gather()
            self._hurried = False
            self._empty_out()
            if self._closed:
                if self._finish is not None:
                    self._guard(self._finish)
                self._ended.set()
                return
            self._idle = True
            if self._items:  # it came before a caller could see `_idle`
                self._idle = False
                self._bell.put(None)

    def _gather(self) -> None:
        try:
            self._bell.get(timeout=self.gather_s)
        except Empty:
            pass

    def _empty_out(self) -> None:
        delivered = False
        while self._items:
            try:
                item = self._items.popleft()
            except IndexError:  # `close` gave up waiting and took the items
                break
            if isinstance(item, _Mark):
                if delivered:
                    self._settle_down()
                delivered = False
                item.set()
            else:
                delivered = True
                try:
                    self._deliver(item)
                except Exception as error:  # noqa: BLE001 - a user's handler may raise anything
                    self._note(error)
        if delivered:
            self._settle_down()

    def _settle_down(self) -> None:
        if self._settle is not None:
            self._guard(self._settle)

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a user's handler may raise anything
            self._note(error)

    def _note(self, error: Exception) -> None:
        self.failed += 1
        self._report_once("raised", f"raised {error!r}; it is still called, and further errors are not reported")

    def _report_once(self, key: str, what: str) -> None:
        with self._lock:
            if key in self._reported:
                return
            self._reported.add(key)
        facts.warn("outbox_trouble", f"{self.name} {what}", name=self.name)


class _Mark(threading.Event):
    """Marks the end of the items that a flush waits for."""


def _begin_anew() -> None:
    for outbox in tuple(_outboxes):
        outbox._begin()


os.register_at_fork(after_in_child=_begin_anew)
