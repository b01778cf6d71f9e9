"""One background thread with one event loop, shared by everything in this process that owns sockets.

An exception that a callback does not catch is told with its traceback and costs only that callback. Should the thread
itself end, everything that waits for it fails at once, and its users are told.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from holdfast.errors import InternalError
from holdfast.facts import facts

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
        self._lock = threading.Lock()
        #: Why the thread has ended; None while it runs.
        self._ended: str | None = None
        self._waits: set[concurrent.futures.Future[Any]] = set()
        self._mourners: list[Callable[[str], None]] = []
        self._thread = threading.Thread(target=self._run, name="holdfast-io", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._ended is None

    def check(self) -> None:
        """Raise `InternalError` if the thread has ended."""
        if self._ended is not None:
            raise InternalError(self._ended)

    def on_end(self, mourner: Callable[[str], None]) -> Callable[[], None]:
        """Have `mourner` called with the reason should the thread end; returns the function that takes it back."""
        with self._lock:
            ended = self._ended
            if ended is None:
                self._mourners.append(mourner)
        if ended is not None:
            mourner(ended)
        return lambda: self._mourners.remove(mourner) if mourner in self._mourners else None

    def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have the loop call `function` soon; returns at once, from any thread.

        What it raises is told. After the end of the thread, of which its users have been told, nothing happens.
        """
        self._end_rest()
        if self._ended is None:
            self.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; not to be called from the loop itself.

        Raises `InternalError`, at once, should the thread end meanwhile.
        """
        assert threading.current_thread() is not self._thread, "waiting for the loop from the loop would never end"
        self._end_rest()
        with self._lock:
            if self._ended is not None:
                work.close()
                raise InternalError(self._ended)
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._waits.add(future)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._lock:
                self._waits.discard(future)

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
        if self._ended is None:
            self.loop.call_soon_threadsafe(stand_still)
            at_rest.wait(REST_TIMEOUT_S)

    def _end_rest(self) -> None:
        if self._work_again is not None and not sys.is_finalizing():
            self._work_again.set()
            self._work_again = None

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        error: BaseException | None = None
        try:
            self.loop.run_forever()
        except BaseException as caught:  # noqa: BLE001 - whatever ends the thread, those who wait for it must hear of it
            error = caught
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Fail every wait and tell every user."""
        reason = f"the I/O thread has ended ({error!r})" if error is not None else "the I/O thread was stopped"
        with self._lock:
            self._ended = reason
            waits, mourners = tuple(self._waits), tuple(self._mourners)
        facts.unexpected("the I/O thread", error or InternalError(reason), "all that waits for it fails")
        for future in waits:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it has just got its result
                future.set_exception(InternalError(reason))
        for mourner in mourners:
            try:
                mourner(reason)
            except Exception as raised:  # noqa: BLE001 - the others must still be told
                facts.unexpected("the end of the I/O thread", raised, "its other users are told all the same")


_guard = threading.Lock()
_threads: dict[int, IoThread] = {}


def io_thread() -> IoThread:
    """Return this process's thread, starting it on first use; a forked child gets its own."""
    pid = os.getpid()
    with _guard:
        if pid not in _threads or not _threads[pid].is_alive:
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
    """Return a fresh event loop, the fast kind where it is installed, that tells what its callbacks raise."""
    loop: asyncio.AbstractEventLoop | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop = uvloop.new_event_loop()
    loop = loop or asyncio.new_event_loop()
    loop.set_exception_handler(_tell)
    return loop


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an uncaught exception of a callback, a timer, a protocol's method, or a task that was never awaited."""
    del loop
    message = str(context.get("message", "something was left undone"))
    error = context.get("exception") or InternalError(message)
    facts.unexpected(f"the I/O thread ({message})", error, "what it was doing is given up")
