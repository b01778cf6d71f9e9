"""The API of timers: `expires` around code that must not take too long, and the classes behind it."""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ContextDecorator
from typing import Any

from holdfast.errors import NoTimerClientError
from holdfast.facts import facts
from holdfast.timer.requests import TimerRequest

#: The variable that names the pipe of the agent's watchdog, if there is one.
TIMER_FILE_VARIABLE = "TORCHELASTIC_TIMER_FILE"

#: How long a server pauses after an unexpected exception.
STUMBLE_S = 1.0


class TimerClient(ABC):
    """A worker's side: sets and releases timers at a server."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer: this worker will leave the scope by `expiration_time`, on the wall clock."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Release the timer: this worker has left the scope."""


class RequestQueue(ABC):
    """The queue from which a server reads the requests of its clients."""

    @abstractmethod
    def size(self) -> int:
        """Return the number of waiting requests; it only grows until `get` is called."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return up to `size` requests, waiting for them no longer than `timeout` seconds."""


class TimerServer(ABC):
    """Watches timers from a thread and kills the workers whose timers expire; implement the four abstract methods.

    Requests carry times of the wall clock. They are translated on arrival to a clock that never jumps, which
    `register_timers` and `get_expired_timers` get: setting the wall clock kills no worker.
    """

    def __init__(self, request_queue: RequestQueue, max_interval: float, daemon: bool = True) -> None:
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None
        self._stop_signaled = False
        self._stopped = threading.Event()
        self._clock_offset = time.time() - time.monotonic()

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Add requests; a negative expiration time releases a timer."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forget all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the timers of each worker that expired at `deadline` or before."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """Kill a worker; return whether that worked. If not, it is tried again."""

    def start(self) -> None:
        """Start to watch, in a thread of its own."""
        self._stop_signaled = False
        self._stopped.clear()
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, name="holdfast timers", daemon=self._daemon
        )
        self._watchdog_thread.start()

    def stop(self) -> None:
        """Stop watching; waits up to `max_interval` for the thread."""
        self._stop_signaled = True
        self._stopped.set()
        if self._watchdog_thread is not None:
            self._watchdog_thread.join(self._max_interval)
            self._watchdog_thread = None

    def _watchdog_loop(self) -> None:
        while not self._stop_signaled:
            try:
                self._run_watchdog()
            except Exception as error:  # noqa: BLE001 - a subclass's method must not end the watch
                facts.unexpected("the timer server", error, "it goes on watching")
                self._stopped.wait(STUMBLE_S)  # an exception that repeats must not keep a processor busy

    def _run_watchdog(self) -> None:
        """Add the requests that have come, then kill the workers that are late."""
        requests = self._request_queue.get(max(1, self._request_queue.size()), self._wait_s())
        self.register_timers([self._translated(request) for request in requests])
        reaped = {worker for worker in self.get_expired_timers(self._steady_time()) if self._reap_no_throw(worker)}
        self.clear_timers(reaped)

    def _wait_s(self) -> float:
        """How long to wait for requests before looking for expired timers again."""
        return self._max_interval

    def _reap_no_throw(self, worker_id: Any) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception as error:  # noqa: BLE001 - as above
            facts.unexpected(f"ending worker {worker_id}", error, "it counts as ended")
            return True

    def _steady_time(self) -> float:
        """Return the wall clock as of the start of this server, plus the time since then."""
        return time.monotonic() + self._clock_offset

    def _translated(self, request: TimerRequest) -> TimerRequest:
        if request.expiration_time >= 0:
            request.expiration_time += self._steady_time() - time.time()
        return request


_client: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Make `expires` use this client in this process."""
    global _client
    _client = timer_client


class expires(ContextDecorator):  # noqa: N801 - the name that users know
    """Kills this worker if the code inside takes longer than `after` seconds; also a decorator of functions.

        with expires(after=60):
            all_reduce(...)

    `scope` names the code in reports; by default it is `file#line`. Without `configure` the watchdog of this worker's
    agent is used, if the agent was started with TORCHELASTIC_ENABLE_FILE_TIMER=1.
    """

    def __init__(self, after: float, scope: str | None = None, client: TimerClient | None = None) -> None:
        if scope is None:
            caller = sys._getframe(1)
            scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
        self._after = after
        self._scope = scope
        self._client = client

    def __enter__(self) -> None:
        client = self._client
        if client is None:
            client = self._client = _client if _client is not None else _find_client()
        client.acquire(self._scope, time.time() + self._after)

    def __exit__(self, *_: object) -> None:
        assert self._client is not None
        self._client.release(self._scope)

    def _recreate_cm(self) -> expires:
        """As a decorator, each call has a timer of its own: it may be called from several threads."""
        return expires(self._after, self._scope, self._client)


def _find_client() -> TimerClient:
    path = os.environ.get(TIMER_FILE_VARIABLE)
    if not path:
        raise NoTimerClientError(
            "there is no timer client: call holdfast.timer.configure(client) first, or start the agent with "
            "TORCHELASTIC_ENABLE_FILE_TIMER=1"
        )
    from holdfast.timer.file_client import FileTimerClient

    configure(FileTimerClient(path))
    assert _client is not None
    return _client
