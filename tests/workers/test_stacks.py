"""Stacks of real processes, with py-spy and without it."""

import os
import signal
from pathlib import Path

import pytest

from holdfast.workers import Program, stacks

WAYS = ["py-spy", "faulthandler"]

DEADLOCK = """
    import threading
    lock = threading.Lock()
    def stuck_here():
        lock.acquire()
        print("ready")
        lock.acquire()
    stuck_here()
"""
C_LOOP = """
    import collections, itertools
    def stuck_here():
        print("ready")
        collections.deque(itertools.repeat(0), maxlen=0)
    stuck_here()
"""
IN_A_THREAD = """
    import threading
    def elsewhere():
        print("ready")
        threading.Event().wait()
    def stuck_here():
        thread = threading.Thread(target=elsewhere, name="helper", daemon=True)
        thread.start()
        thread.join()
    stuck_here()
"""


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param == "faulthandler":
        monkeypatch.setattr(stacks, "_find_spy", lambda: None)
    elif stacks._find_spy() is None:
        pytest.skip("py-spy is not installed")
    return request.param


def take(gang):
    pids = gang.pids()
    found = stacks.take(pids.values(), {pid: gang.stacks_file(rank) for rank, pid in pids.items()})
    return {rank: found[pid] for rank, pid in pids.items()}


@pytest.mark.parametrize("text", [DEADLOCK, C_LOOP], ids=["deadlock", "loop in C"])
def test_a_worker_that_is_stuck_shows_its_calls_and_nothing_of_ours(start, script, console, way, text):
    path = script(text)
    gang = start(path, 2)
    console.wait_line(b"[0]ready", b"[1]ready")

    found = take(gang)

    for stack in found.values():
        assert [frame.function for frame in stack.main] == ["stuck_here", "<module>"], stack
        assert stack.main[0].file == path
    assert len(stacks.merge(found)) == 1
    assert gang.running() == [0, 1]


def test_every_thread_is_shown_and_the_main_one_is_known(start, script, console, way):
    gang = start(script(IN_A_THREAD))
    console.wait_line(b"ready")

    (stack,) = take(gang).values()

    assert stack.threads[0].is_main
    assert "stuck_here" in [frame.function for frame in stack.main]
    assert any(frame.function == "elsewhere" for thread in stack.threads[1:] for frame in thread.frames)


def test_a_worker_can_be_asked_again(start, script, console, way):
    gang = start(script(DEADLOCK))
    console.wait_line(b"ready")

    for _ in range(2):
        assert [frame.function for frame in take(gang)[0].main] == ["stuck_here", "<module>"]


def test_a_stopped_worker_says_so(start, script, console, way):
    gang = start(script(DEADLOCK))
    console.wait_line(b"ready")
    os.kill(gang.pids()[0], signal.SIGSTOP)
    os.waitid(os.P_PID, gang.pids()[0], os.WSTOPPED | os.WNOWAIT)

    (stack,) = take(gang).values()

    assert stack.state == "T"
    assert "stopped by a signal" in stacks.render(stacks.merge({0: stack}))
    if way == "py-spy":
        assert stack.main[0].function == "stuck_here"
    else:
        assert "cannot answer in this state" in stack.note


def test_who_does_not_listen_is_never_sent_the_signal(start, console, way, tmp_path):
    gang = start(Program(("sh", "-c", "echo ready; read nothing < " + str(_fifo(tmp_path)))))
    console.wait_line(b"ready")
    pid = gang.pids()[0]

    found = stacks.take([pid], {pid: str(tmp_path / "stacks")})

    assert found[pid].threads == ()
    assert found[pid].note
    assert gang.running() == [0]


def _fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def test_a_process_that_is_gone_is_no_trouble(way):
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(pid, 0)

    found = stacks.take([pid], {pid: "/nowhere"})

    assert found[pid].state == "X"
    assert found[pid].threads == ()


@pytest.mark.parametrize("answer", ["not json", "{}", "[1]", '[{"frames": [{}]}]'])
def test_a_spy_that_answers_nonsense_is_quoted_not_raised(monkeypatch, tmp_path, answer):
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\necho '{answer}'; echo strange >&2")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "_find_spy", lambda: str(spy))

    found = stacks.take([os.getpid()])[os.getpid()]

    assert found.threads == ()


def test_a_spy_that_hangs_is_given_up(monkeypatch, tmp_path):
    spy = tmp_path / "spy"
    spy.write_text("#!/bin/sh\nexec sleep 600")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "_find_spy", lambda: str(spy))

    assert "no answer in time" in stacks.take([os.getpid()], timeout_s=0.1)[os.getpid()].note
