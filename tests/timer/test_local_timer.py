"""Timers through a multiprocessing queue, with real processes."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.timer import LocalTimerClient, LocalTimerServer, MultiprocessingRequestQueue, TimerRequest, expires

PATIENCE_S = 240.0


@pytest.fixture
def queue() -> Iterator[Any]:
    made = mp.get_context("spawn").Queue()
    yield made
    made.close()
    made.join_thread()


@pytest.fixture
def server(queue: Any) -> Iterator[LocalTimerServer]:
    made = LocalTimerServer(queue, max_interval=PATIENCE_S)
    made.start()
    yield made
    made.stop()


def hang(queue: Any) -> None:
    with expires(after=0.1, client=LocalTimerClient(queue)):
        signal.pause()


def be_done_in_time(queue: Any) -> None:
    for _ in range(3):
        with expires(after=PATIENCE_S, client=LocalTimerClient(queue)):
            pass


def run(function: Any, queue: Any) -> int | None:
    process = mp.get_context("spawn").Process(target=function, args=(queue,))
    process.start()
    process.join(PATIENCE_S)
    code = process.exitcode
    process.kill()
    process.join()
    process.close()
    return code


def test_a_process_whose_timer_expires_is_killed_however_long_the_interval(
    server: LocalTimerServer, queue: Any
) -> None:
    assert run(hang, queue) == -signal.SIGKILL


def test_a_process_that_is_done_in_time_is_left_alone(server: LocalTimerServer, queue: Any) -> None:
    assert run(be_done_in_time, queue) == 0


def test_a_timer_of_the_servers_own_process_kills_no_process(queue: Any) -> None:
    server = LocalTimerServer(queue)
    server.register_timers([TimerRequest(os.getpid(), "mine", time.time() - 1)])

    assert server._reap_worker(os.getpid())


def test_timers_are_registered_released_cleared_and_found(queue: Any) -> None:
    server = LocalTimerServer(queue)
    server.register_timers([TimerRequest(1, "a", 10.0), TimerRequest(1, "b", 20.0), TimerRequest(2, "a", 30.0)])
    server.register_timers([TimerRequest(1, "a", -1)])

    assert server.get_expired_timers(25.0) == {1: [TimerRequest(1, "b", 20.0)]}
    server.clear_timers({1})
    assert server.get_expired_timers(35.0) == {2: [TimerRequest(2, "a", 30.0)]}


def test_the_queue_gives_what_is_there_and_waits_no_longer(queue: Any) -> None:
    requests = MultiprocessingRequestQueue(queue)
    assert requests.get(5, timeout=0) == []
    client = LocalTimerClient(queue)
    client.acquire("a", 1.0)
    client.release("a")

    found: list[TimerRequest] = []
    while len(found) < 2:  # a feeder thread brings them one by one
        found += requests.get(2, timeout=PATIENCE_S)

    assert found == [TimerRequest(os.getpid(), "a", 1.0), TimerRequest(os.getpid(), "a", -1)]
    assert requests.size() == 0


def test_stopping_does_not_wait_for_the_interval(queue: Any) -> None:
    server = LocalTimerServer(queue, max_interval=100 * PATIENCE_S)
    server.start()
    thread = next(each for each in threading.enumerate() if each.name == "holdfast timers")
    server.stop()

    assert not thread.is_alive()
