"""Stillness from what the kernel counts: what counts as moving, and real processes that do or do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from holdfast.timer.signs import read_signs
from holdfast.timer.stillness import Signs, Stillness

STILL = Signs(pid=1, cpu_s=5.0, wake_ups=100, io=1000)


def test_workers_are_still_since_the_first_look() -> None:
    stillness = Stillness()

    assert stillness.look({0: STILL}, 10.0) == 0.0
    assert stillness.look({0: STILL}, 15.0) == 5.0
    assert stillness.look({0: STILL}, 20.0) == 10.0


@pytest.mark.parametrize(
    "moved",
    [
        Signs(1, 5.4, 100, 1000),  # computed
        Signs(1, 5.0, 110, 1000),  # woke up often: it communicates
        Signs(1, 5.0, 100, 1001),  # wrote
        Signs(2, 5.0, 100, 1000),  # another process: it was replaced
        Signs(1, 5.0, 100, 1000, ready=True),  # computes on a host that gives it no time
    ],
)
def test_one_sign_of_one_worker_is_movement(moved: Signs) -> None:
    stillness = Stillness()
    stillness.look({0: STILL, 1: STILL}, 10.0)

    assert stillness.look({0: STILL, 1: moved}, 15.0) == 0.0
    assert stillness.look({0: STILL, 1: replace(moved, ready=False)}, 20.0) == 5.0


def test_threads_that_poll_in_the_background_are_not_movement() -> None:
    stillness = Stillness()
    stillness.look({0: STILL}, 10.0)

    assert stillness.look({0: Signs(1, 5.1, 104, 1000)}, 15.0) == 5.0


def test_the_end_of_a_worker_is_movement() -> None:
    stillness = Stillness()
    stillness.look({0: STILL, 1: STILL}, 10.0)

    assert stillness.look({0: STILL}, 15.0) == 0.0
    assert stillness.look({0: STILL}, 20.0) == 5.0


def test_where_all_have_ended_the_end_of_the_last_one_counts() -> None:
    stillness = Stillness()
    stillness.look({0: STILL}, 10.0)
    stillness.look({}, 15.0)

    assert stillness.look({}, 20.0) == 5.0


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that says when it begins, and then does what the parameter says."""
    program = f"import os, signal, sys, time; print('on', flush=True); {request.param}"
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert started.stdout is not None
    started.stdout.readline()
    yield started
    os.killpg(started.pid, signal.SIGKILL)  # its child as well
    started.wait()
    started.stdout.close()


def moves_within(pid: int, seconds: float) -> bool:
    """Look until the process has been seen to move; says whether it has."""
    stillness, until = Stillness(), time.monotonic() + seconds
    stillness.look(read_signs({0: pid}), time.monotonic())
    while time.monotonic() < until:
        time.sleep(0.25)  # the interval between two looks is what is measured
        if stillness.look(read_signs({0: pid}), time.monotonic()) == 0.0:
            return True
    return False


@pytest.mark.parametrize(
    "process",
    [
        "exec('while True: pass')",
        'exec(\'while True: os.write(2, b""); open(os.devnull, "w").write("x"); time.sleep(0.2)\')',
        "import subprocess as s; s.run([sys.executable, '-c', 'while True: pass'])",
    ],
    ids=["computes", "writes", "its_child_computes"],
    indirect=True,
)
def test_a_real_process_that_does_something_moves(process: subprocess.Popen[str]) -> None:
    assert moves_within(process.pid, 60.0)


@pytest.mark.parametrize("process", ["exec('while True: pass')"], indirect=True)
def test_a_process_that_computes_is_ready_to_run_however_little_time_it_gets(process: subprocess.Popen[str]) -> None:
    assert any(read_signs({0: process.pid})[0].ready for _ in range(1000))


@pytest.mark.parametrize(
    "process",
    [
        "signal.pause()",
        "import threading; threading.Event().wait()",
        "import queue; exec('while True:\\n try: queue.Queue().get(timeout=5)\\n except queue.Empty: pass')",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["pauses", "waits", "polls_slowly", "stopped"],
    indirect=True,
)
def test_a_real_process_that_waits_comes_to_rest(process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60.0
    while moves_within(process.pid, 1.0):  # it may still be on its way to the wait
        assert time.monotonic() < until


def test_a_process_that_has_ended_is_left_out() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert read_signs({0: ended.pid}) == {}
