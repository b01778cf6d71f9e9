"""The screen of `holdfast top`, and what nvidia-smi says."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.view.gpus import GpuUse, parse
from holdfast.view.state import RunState
from holdfast.view.top import Line, Rates, Row, Seen, as_line, render
from tests.cli.conftest import Invoke
from tests.cli.test_runs import wait_started
from tests.view.test_state import BEGUN, STARTED, read, told

LOST = told(30, "round_lost", reason="rank 1 (local rank 1, pid 8) on a: killed by SIGKILL")


def clock(when: float) -> str:
    return f"{when:08.1f}"


def text(lines: list[Line]) -> list[str]:
    return ["".join(piece for piece, _ in line) for line in lines]


def state(*more: object, now: float = 60, name: str = "r") -> RunState:
    reader = read(BEGUN, STARTED, *more)  # type: ignore[arg-type]
    reader._run = name
    return reader.state(now, over=False)


def test_a_run_fits_eighty_columns_and_the_lines_there_are() -> None:
    rows = [
        Row(rank, "a-host-with-a-long-name", 4000000 + rank, 10**6, 1234.5, 3.2, 100, 1 << 34) for rank in range(64)
    ]
    broken = [told(31 + each, "round_broken", level="warning") for each in range(30)]

    for width, height in ((80, 24), (40, 10), (200, 60)):
        lines = text(render([Seen(state(*broken), rows)], 0, 60, clock, width, height))

        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_ranks_that_do_not_fit_are_counted_and_those_that_are_silent_are_shown() -> None:
    rows = [Row(rank, "a", 1, 5, 1.0, 99.0 if rank == 40 else 0.1, 100, 1000) for rank in range(64)]

    lines = text(render([Seen(state(), rows)], 0, 60, clock, 80, 24))

    assert any(line.split()[:1] == ["40"] for line in lines)
    assert any("more ranks" in line for line in lines)


def test_what_was_lost_and_what_is_waited_for_is_on_the_screen() -> None:
    waiting = state(LOST, told(31, "workers_stopped"), told(32, "waiting"))

    shown = "\n".join(text(render([Seen(waiting)], 0, 60, clock, 80, 24)))

    assert "30.0 s lost to rank 1 on a: killed by SIGKILL" in shown
    assert "waiting: waiting" in shown


def test_several_runs_are_a_table_with_the_chosen_one_below() -> None:
    runs = [Seen(state(name=f"run-{number}")) for number in range(20)]

    lines = text(render(runs, 15, 60, clock, 80, 24))

    assert sum(line.startswith("> ") for line in lines) == 1
    assert any(line.startswith("run-15 running") for line in lines)


def test_without_runs_the_screen_says_so() -> None:
    assert "No run" in text(render([], 0, 60, clock, 80, 24))[-1]


def test_a_run_as_a_line() -> None:
    line = as_line(Seen(state(), [Row(0, "a", 7, 12, 3.0)]), 60, clock)

    assert line == "000060.0 r: running for 1 min 00 s, round 1, 2 workers, step 12, 3 steps/s, 2.0 s lost, 0 restarts"


def test_the_speed_of_a_rank_is_that_of_the_last_seconds_and_of_this_process() -> None:
    rates = Rates()

    assert rates.take(0, {0: 0}) == {}
    assert rates.take(2, {0: 10}) == {0: 5}
    assert rates.take(3, {0: 2}) == {0: pytest.approx(2 / 3)}  # a new process began at 0
    assert rates.take(20, {0: 50}) == {}  # what was seen before is too old


def test_what_nvidia_smi_prints_is_added_up_by_process() -> None:
    used = parse(["GPU-a, 0, 90", "GPU-b, 1, [N/A]", "junk"], ["7, GPU-a, 100", "7, GPU-b, 50", "8, GPU-b, [N/A]", "x"])

    assert used == {7: GpuUse(90, 150 << 20), 8: GpuUse(0, 0)}


WAITS = "import signal, holdfast\nholdfast.heartbeat(41)\nprint('beat', flush=True)\nsignal.pause()\n"


def test_top_draws_in_place_on_a_terminal_and_in_lines_elsewhere(
    invoke: Invoke,
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    assert "no run is live" in invoke("top").err
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    launch = start("launch", "--rdzv-id", "watched", str(script))
    assert launch.stdout is not None
    assert launch.stdout.readline() == "beat\n"
    wait_started(start)

    assert " 41 " in invoke("top", "--once").out
    shown = on_terminal("top", "watched")
    assert "\x1b[?1049h" in shown  # it drew on a screen of its own
    assert shown.endswith("\x1b[?1049l")  # and put the old one back
    assert " 41 " in shown

    launch.terminate()
    launch.communicate()


def on_terminal(*arguments: str) -> str:
    """Run a command on a terminal of 80 columns, press q once it has drawn, and return all that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *arguments], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said, asked = b"", False
    try:
        while select.select([ours], [], [], 60)[0]:
            try:
                said += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if b"\x1b[J" in said and not asked:
                asked = bool(os.write(ours, b"q"))
    finally:
        process.wait(240)
        os.close(ours)
    assert process.returncode == 0
    return said.decode()
