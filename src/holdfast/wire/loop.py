"""One background thread with one event loop, shared by everything in this process that owns sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class IoThread:
    """Runs an event loop in a daemon thread; the rest of the process only hands work to it."""

    def __init__(self) -> None:
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-io", daemon=True)
        self._thread.start()

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have the loop call `function` soon; returns at once, from any thread."""
        self.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; not to be called from the loop itself."""
        assert threading.current_thread() is not self._thread, "waiting for the loop from the loop would never end"
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

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


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a fresh event loop, the fast kind where it is installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()
