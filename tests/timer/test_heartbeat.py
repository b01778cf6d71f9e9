"""The heartbeat: what a worker writes is what its agent reads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.timer.beats import BeatBook, read_progress
from holdfast.timer.hang import Beat


@pytest.fixture
def book() -> Iterator[BeatBook]:
    made = BeatBook(3)
    yield made
    made.close()


def run(code: str, **variables: str) -> None:
    environ = {**os.environ, **variables}
    subprocess.run([sys.executable, "-W", "error", "-c", f"import holdfast\n{code}"], env=environ, check=True)


def test_a_workers_beats_are_in_its_own_slot(book: BeatBook) -> None:
    before = time.monotonic()
    run("for step in range(10, 15): holdfast.heartbeat(step)", **book.variables(1))
    after = time.monotonic()

    beat = book.read(1)

    assert (beat.count, beat.step) == (5, 14)
    assert beat.last is not None
    assert before <= beat.last <= after
    assert book.read(0) == book.read(2) == Beat()


def test_the_longest_time_between_beats_is_told_but_for_the_first_ones(book: BeatBook) -> None:
    code = """
import holdfast.timer.heartbeat as module
times = iter([1, 1000, 1001, 1002, 1052, 1053])
module.monotonic_ns = lambda: int(next(times) * 1e9)
for _ in range(6): holdfast.heartbeat()
"""
    run(code, **book.variables(0))

    assert (book.read(0).longest_s, book.read(0).last) == (50.0, 1053.0)


def test_a_pause_lasts_until_the_next_beat_and_is_no_step(book: BeatBook) -> None:
    code = """
from holdfast.timer import heartbeat as module
times = iter([1, 2, 3, 4, 5, 5000])
module.monotonic_ns = lambda: int(next(times) * 1e9)
for _ in range(5): holdfast.heartbeat()
module.pause()
"""
    run(code, **book.variables(0))
    assert (book.read(0).count, book.read(0).last) == (5, None)

    run(code + "holdfast.heartbeat()", **book.variables(1))
    assert (book.read(1).last, book.read(1).longest_s) == (5000.0, 1.0)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOLDFAST_HEARTBEAT_FILE": "/nowhere", "HOLDFAST_HEARTBEAT_SLOT": "0"},
        {"HOLDFAST_HEARTBEAT_FILE": "/dev/null", "HOLDFAST_HEARTBEAT_SLOT": "0"},
        {"HOLDFAST_HEARTBEAT_FILE": "{path}", "HOLDFAST_HEARTBEAT_SLOT": "3"},
        {"HOLDFAST_HEARTBEAT_FILE": "{path}", "HOLDFAST_HEARTBEAT_SLOT": "-1"},
        {"HOLDFAST_HEARTBEAT_FILE": "{path}"},
    ],
)
def test_without_a_watchdog_a_heartbeat_does_nothing(book: BeatBook, variables: dict[str, str]) -> None:
    run(
        "holdfast.heartbeat(1); holdfast.heartbeat()",
        **{name: value.replace("{path}", book.path) for name, value in variables.items()},
    )

    assert [book.read(rank) for rank in range(3)] == [Beat()] * 3


def test_a_child_that_is_forked_as_a_worker_has_a_slot_of_its_own(book: BeatBook) -> None:
    """As a function is started by fork from a program that has called `heartbeat` itself."""
    code = f"""
import os
holdfast.heartbeat()
pid = os.fork()
if pid == 0:
    os.environ.update({book.variables(2)!r})
    holdfast.heartbeat(7)
    os._exit(0)
os.waitpid(pid, 0)
"""
    run(code)

    assert (book.read(2).count, book.read(2).step) == (1, 7)


def test_the_file_is_ours_alone_and_goes_away() -> None:
    book = BeatBook(1)
    assert Path(book.path).stat().st_mode & 0o777 == 0o600
    book.close()
    assert not Path(book.path).exists()


def test_progress_tells_the_first_and_the_last_step_also_during_a_pause(book: BeatBook) -> None:
    began = time.time()
    run("for step in range(10, 15): holdfast.heartbeat(step)\nholdfast.pause()", **book.variables(1))
    ended = time.time()

    progress = book.progress(1)

    assert progress is not None
    assert (progress.steps, progress.first_step, progress.last_step) == (5, 10, 14)
    assert began - 1 <= progress.first_at <= progress.last_at <= ended + 1
    assert book.progress(0) is None
    assert read_progress(book.path, {7: 1, 3: 0, 9: 99}).keys() == {7}
    assert read_progress("/nowhere", {0: 0}) == {}


def test_beats_without_numbers_are_steps_without_numbers(book: BeatBook) -> None:
    run("holdfast.heartbeat(); holdfast.heartbeat()", **book.variables(0))

    progress = book.progress(0)

    assert progress is not None
    assert (progress.steps, progress.first_step, progress.last_step) == (2, None, None)
