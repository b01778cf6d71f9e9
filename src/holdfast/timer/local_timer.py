"""Timers of processes that share a multiprocessing queue with their timer server."""

from __future__ import annotations

import os
import signal
from queue import Empty
from typing import TYPE_CHECKING, Any

from holdfast.timer.api import RequestQueue, TimerClient, TimerServer
from holdfast.timer.machine import TimerMachine, TimerReleased, TimerSet, WorkerForgotten
from holdfast.timer.requests import TimerRequest

if TYPE_CHECKING:
    from multiprocessing.queues import Queue


class LocalTimerClient(TimerClient):
    """Sends this process's requests through a queue; its pid names it."""

    def __init__(self, mp_queue: Queue[TimerRequest]) -> None:
        self._queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """A multiprocessing queue as a server reads it."""

    def __init__(self, mp_queue: Queue[TimerRequest]) -> None:
        self._queue = mp_queue

    def size(self) -> int:
        return self._queue.qsize()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        requests: list[TimerRequest] = []
        try:
            while len(requests) < size:
                requests.append(self._queue.get(timeout=timeout if not requests else 0.001))
        except Empty:
            pass
        return requests


class LocalTimerServer(TimerServer):
    """Kills the processes of this host whose timers expire; a process is named by its pid."""

    def __init__(self, mp_queue: Queue[TimerRequest], max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._queue = mp_queue
        self._machine = TimerMachine()

    def stop(self) -> None:
        """Stop watching, at once."""
        self._stop_signaled = True
        self._queue.put(TimerRequest(0, "", -1))  # releases nothing, and wakes the thread
        super().stop()

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            worker, scope = request.worker_id, request.scope_id
            if request.expiration_time < 0:
                self._machine.handle(TimerReleased(worker, scope), self._steady_time())
            else:
                self._machine.handle(TimerSet(worker, scope, request.expiration_time), self._steady_time())

    def clear_timers(self, worker_ids: set[int]) -> None:
        for worker in worker_ids:
            self._machine.handle(WorkerForgotten(worker), self._steady_time())

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        expired = self._machine.expired(deadline)
        return {
            worker: [TimerRequest(worker, timer.scope, timer.deadline) for timer in timers]
            for worker, timers in expired.items()
        }

    def _wait_s(self) -> float:
        deadline = self._machine.next_deadline()
        wait_s = self._max_interval if deadline is None else deadline - self._steady_time()
        return min(max(wait_s, 0.0), self._max_interval)

    def _reap_worker(self, worker_id: int) -> bool:
        if worker_id == os.getpid():
            return True  # this process cannot end a hang of its own
        try:
            os.kill(worker_id, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return True
