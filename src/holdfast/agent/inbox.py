"""The inbox: where other threads and signal handlers leave what happened, for one loop to take out."""

from __future__ import annotations

import os
import select
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue whose descriptor is readable while something is in it, so that a loop can wait for it among others."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def put(self, item: T) -> None:
        """Leave an item; callable from any thread and from a signal handler."""
        self._items.append(item)
        os.eventfd_write(self._fd, 1)

    def take(self) -> T | None:
        """Return the oldest item, or None; never waits."""
        if not self._items:
            self._drain()
        return self._items.popleft() if self._items else None

    def holds(self, kind: type) -> bool:
        """Say whether an item of a kind is in it."""
        return any(isinstance(item, kind) for item in tuple(self._items))

    def wait(self, timeout: float | None = None, *others: int) -> None:
        """Wait until there is an item, one of the other descriptors is readable, or the time is up."""
        if self._items:
            return
        poller = select.poll()
        for fd in (self._fd, *others):
            poller.register(fd, select.POLLIN)
        poller.poll(None if timeout is None else max(0.0, timeout) * 1000)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return  # nothing was written since the last look
