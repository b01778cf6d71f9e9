"""The inbox: other threads and signal handlers put items into it, and one loop takes them out."""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class Inbox(Generic[T]):
    """A queue whose descriptor is readable while something is in it, so that a loop can wait for it among others."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        #: Taken out before all others.
        self._urgent: deque[T] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        #: Readable after a signal, while `woken_by_signals`; -1 otherwise.
        self._signal_fd = -1

    def put(self, item: T, *, urgent: bool = False) -> None:
        """Put an item; callable from any thread and from a signal handler. Urgent items are taken out first."""
        (self._urgent if urgent else self._items).append(item)
        os.eventfd_write(self._fd, 1)

    def take(self) -> T | None:
        """Return the oldest item, or None; never waits."""
        if not self._urgent and not self._items:
            self._drain()
        if self._urgent:
            return self._urgent.popleft()
        return self._items.popleft() if self._items else None

    def find(self, kind: type[K]) -> K | None:
        """Return the oldest item of a kind, which stays where it is, or None."""
        return next((item for item in (*self._urgent, *tuple(self._items)) if isinstance(item, kind)), None)

    def wait(self, timeout: float | None = None, *others: int) -> None:
        """Wait until there is an item, one of the other descriptors is readable, or the time is up."""
        if self._urgent or self._items:
            return
        poller = select.poll()
        for fd in (self._fd, *others):
            poller.register(fd, select.POLLIN)
        if self._signal_fd >= 0:
            poller.register(self._signal_fd, select.POLLIN)
        poller.poll(None if timeout is None else max(0.0, timeout) * 1000)
        self._forget_signals()

    @contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Make every signal end a `wait`, so that Python can run its handler; for the main thread.

        The kernel may deliver a signal to any thread of the process. Delivered to another, it would not end the main
        thread's wait, and the handler, which only the main thread runs, would be called much later.
        """
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._signal_fd = reader
        try:
            yield
        finally:
            self._signal_fd = -1
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)

    def _forget_signals(self) -> None:
        if self._signal_fd >= 0:
            with suppress(BlockingIOError):
                os.read(self._signal_fd, 4096)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return  # nothing was written since the last look
