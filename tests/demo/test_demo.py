"""The demo from end to end, with real processes: what it shows, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.workers.linux import set_child_subreaper
from holdfast.workers.strays import children, descendants, read_stat
from tests.launcher.conftest import MARK, marked

StartDemo = Callable[..., "subprocess.Popen[str]"]

FAST = ("--steps", "5", "--step-time", "0", "--patience", "240")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[StartDemo]:
    """Starts demos; fails the test that leaves a process or a folder behind."""
    mark = secrets.token_hex(8)
    folder = tmp_path / "tmp"
    folder.mkdir()
    # A demo must not care for what is set around it.
    environ = {**os.environ, MARK: mark, "TMPDIR": str(folder), "PET_NNODES": "7", "HOLDFAST_SECRET": "other"}
    started: list[subprocess.Popen[str]] = []
    set_child_subreaper(True)  # a process that loses its parent becomes ours, and is found

    def start(*arguments: str, page: bool = False, out: int = subprocess.PIPE) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast", "demo", "--page" if page else "--no-page", *arguments]
        started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, env=environ))
        return started[-1]

    before = set(descendants(os.getpid()))
    try:
        yield start
        for each in started:
            if each.poll() is None:
                each.kill()  # a test that failed halfway
            each.communicate()
        left = {pid for pid in descendants(os.getpid()) if pid not in before} | set(marked(mark))
        left = {pid for pid in left if (stat := read_stat(pid)) is not None and stat.state != "Z"}
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "processes were left behind"
    finally:
        for pid in set(children(os.getpid())) - before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        set_child_subreaper(False)


def wait_line(demo: subprocess.Popen[str], piece: str) -> list[str]:
    assert demo.stdout is not None
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if piece in line:
            return lines
    raise AssertionError(f"the demo ended without '{piece}': {''.join(lines)}")


@pytest.mark.slow
def test_on_a_terminal_the_page_stays_until_ctrl_c(demo: StartDemo) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    ours, theirs = pty.openpty()
    process = demo(*FAST, page=True, out=theirs)
    os.close(theirs)
    shown = b""
    while b"until you press Ctrl-C" not in shown:
        shown += os.read(ours, 65536)
    assert process.poll() is None
    link = re.search(rb"the page stays, at (http://\S+),", shown)
    assert link is not None
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(link[1].decode(), timeout=240) as answer:
        assert answer.status == 200

    process.send_signal(signal.SIGINT)

    assert process.wait(240) == 0
    os.close(ours)


@pytest.mark.slow
def test_a_worker_and_a_node_are_killed_and_the_table_tells_what_it_cost(demo: StartDemo, tmp_path: Path) -> None:
    process = demo(*FAST)
    out, err = process.communicate()

    assert process.returncode == 0, out + err
    assert err == ""
    table = re.findall(r"^(\S.*?) {2,}(\d+\.\d\d) +(\d+) +round (\d+), (\d) workers$", out, re.MULTILINE)
    assert [(what, workers) for what, _, _, _, workers in table] == [
        ("worker rank 3", "4"),
        ("node B: its agent and 2 workers", "2"),
        ("nothing: a new node came", "4"),
    ]
    rounds = [int(number) for _, _, _, number, _ in table]
    assert rounds == sorted(set(rounds))
    # Rank 0 saves each step before it begins the next, so at most the one that was being saved is lost.
    assert all(int(lost) <= 1 for _, _, lost, _, _ in table)
    assert re.search(r"killed worker rank 3 on node B \(SIGKILL to pid \d+\)", out)
    assert re.search(r"round \d+ broke: .*SIGKILL", out)
    assert "killed node B: its agent and 2 workers (SIGKILL to all)" in out
    last = out.splitlines()[-1]
    assert re.fullmatch(
        r"all recovered: \d+ steps, loss \d+\.\d\d -> 0\.000\d; the model is right \(within 0\.0\d\d\d\) "
        r"and the same as without any failure \((exactly|to \de-1\d)\)",
        last,
    )
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["starting 2 nodes", "killed worker", "starting a new node"])
def test_a_signal_at_any_moment_leaves_nothing_behind(
    demo: StartDemo, tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    process = demo(*FAST)
    wait_line(process, moment)
    process.send_signal(number)
    out, err = process.communicate()

    assert process.returncode == 128 + number
    assert f"{number.name}: stopping everything" in out
    assert err == ""
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_a_demo_that_is_killed_takes_its_processes_with_it(demo: StartDemo) -> None:
    process = demo(*FAST)
    wait_line(process, "training")
    family = descendants(process.pid)
    assert len(family) >= 6  # two agents of two workers
    process.kill()
    process.communicate()

    # They have become ours. Each of them ends by itself: waiting for it is all there is to do.
    while orphans := [pid for pid in family if pid in children(os.getpid())]:
        for pid in orphans:
            os.waitpid(pid, 0)


def test_a_demo_without_progress_fails_in_a_sentence(demo: StartDemo, tmp_path: Path) -> None:
    process = demo("--patience", "0.01")
    out, err = process.communicate()

    assert process.returncode == 1
    assert out.splitlines()[-1] == "failed: nothing happened for 0.01 s while gathering"
    assert err == ""
    assert list((tmp_path / "tmp").iterdir()) == []
