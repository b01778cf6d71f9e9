"""One background thread with one event loop, shared by everything in this process that owns sockets."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: How long a process that ends waits for its loop to come to rest.
REST_TIMEOUT_S = 1.0


class IoThread:
    """Runs an event loop in a daemon thread; the rest of the process only hands work to it."""

    def __init__(self) -> None:
        self.loop = new_loop()
        #: Set, it ends the rest of a loop that has come to rest.
        self._work_again: threading.Event | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-io", daemon=True)
        self._thread.start()

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have the loop call `function` soon; returns at once, from any thread."""
        self._end_rest()
        self.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; not to be called from the loop itself."""
        assert threading.current_thread() is not self._thread, "waiting for the loop from the loop would never end"
        self._end_rest()
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def rest(self) -> None:
        """Have the loop do nothing until it is handed work again.

        The thread outlives Python itself: what a large library tears down after that takes time, and a timer of the
        loop that ends meanwhile would call into an interpreter that is not there any more.
        """
        at_rest, again = threading.Event(), threading.Event()

        def stand_still() -> None:
            at_rest.set()
            again.wait()

        self._work_again = again
        self.loop.call_soon_threadsafe(stand_still)
        at_rest.wait(REST_TIMEOUT_S)

    def _end_rest(self) -> None:
        if self._work_again is not None and not sys.is_finalizing():
            self._work_again.set()
            self._work_again = None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_guard = threading.Lock()
_threads: dict[int, IoThread] = {}


def io_thread() -> IoThread:
    """Return this process's thread, starting it on first use; a forked child gets its own."""
    pid = os.getpid()
    with _guard:
        if pid not in _threads:
            _threads[pid] = IoThread()
        return _threads[pid]


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()  # the parent may have held it at the moment of the fork


os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    thread = _threads.get(os.getpid())
    if thread is not None:
        thread.rest()


atexit.register(_at_exit)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a fresh event loop, the fast kind where it is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()
