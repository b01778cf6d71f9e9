"""Timers through a named pipe, with real processes on both sides."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import queue
import random
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.timer import FileTimerClient, FileTimerRequest, FileTimerServer, api, expires, file_client
from holdfast.timer.machine import TIMERS_MAX, TimersExpired
from tests.processes import finish

PATIENCE_S = 240.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "pipe")


@pytest.fixture
def server(path: str) -> Iterator[FileTimerServer]:
    """A server that is not started: a test may drive it by hand."""
    made = FileTimerServer(path, "run", max_interval=PATIENCE_S)
    yield made
    made.stop()


@pytest.fixture
def client(server: FileTimerServer, path: str) -> Iterator[FileTimerClient]:
    made = FileTimerClient(path)
    yield made
    made.close()


@pytest.fixture
def worker(path: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process whose timers go into the pipe."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str) -> subprocess.Popen[str]:
        code = "import os, signal, sys, time\nfrom holdfast.timer import *\n" + textwrap.dedent(body)
        environ = {**os.environ, "TORCHELASTIC_TIMER_FILE": path}
        started.append(subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def mine(server: FileTimerServer) -> list[str]:
    """The scopes of this process's timers, however late they would expire."""
    return [request.scope_id for request in server.get_expired_timers(time.time() + 1e6).get(os.getpid(), [])]


# -- expiry --------------------------------------------------------------------------------------------------


def test_a_process_that_hangs_is_ended_and_this_one_lives(server: FileTimerServer, worker: Callable) -> None:
    server.start()

    hung = worker("with expires(after=0.1): signal.pause()")

    assert hung.wait(PATIENCE_S) == -signal.SIGKILL


def test_the_requests_signal_is_sent_and_both_events_are_logged(path: str, worker: Callable) -> None:
    log: list[tuple[str, FileTimerRequest | None]] = []
    server = FileTimerServer(path, "run", log_event=lambda name, request: log.append((name, request)))
    server.start()
    hung = worker(
        """
        client = FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal.SIGTERM)
        with expires(after=0.1, scope="step", client=client):
            signal.pause()
        """
    )

    assert hung.wait(PATIENCE_S) == -signal.SIGTERM
    server.stop()
    assert [name for name, _ in log] == ["watchdog started", "timer expired", "kill worker process", "watchdog stopped"]
    assert log[1][1] is not None
    assert (log[1][1].worker_pid, log[1][1].scope_id, log[1][1].signal) == (hung.pid, "step", signal.SIGTERM)


def test_a_process_that_is_stopped_is_ended_too(server: FileTimerServer, worker: Callable) -> None:
    server.start()

    stopped = worker("with expires(after=0.1): os.kill(os.getpid(), signal.SIGSTOP)")

    assert stopped.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_that_is_done_in_time_is_left_alone(server: FileTimerServer, worker: Callable) -> None:
    server.start()
    body = """
        for number in range(1000):
            with expires(after=60, scope=f"step {number % 7}"):
                with expires(after=30, scope="inner"):
                    pass
    """

    assert worker(body).wait(PATIENCE_S) == 0
    assert server.refused == 0


def test_without_a_signal_an_expired_timer_only_reports(path: str, worker: Callable) -> None:
    expired = threading.Event()
    server = FileTimerServer(path, "run", log_event=lambda name, _: expired.set() if name == "timer expired" else None)
    server.start()
    soft = worker(
        """
        with expires(after=0.1, client=FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal=0)):
            signal.signal(signal.SIGUSR1, lambda *_: print("still here"))
            print("ready", flush=True)
            signal.pause()
        """
    )
    assert soft.stdout is not None
    assert soft.stdout.readline() == "ready\n"
    assert expired.wait(PATIENCE_S)
    soft.send_signal(signal.SIGUSR1)

    assert finish(soft)[0] == "still here\n"
    server.stop()


@pytest.mark.torch
def test_torchelastics_own_client_is_understood(server: FileTimerServer, worker: Callable) -> None:
    pytest.importorskip("torch")
    server.start()
    hung = worker(
        """
        from torch.distributed.elastic import timer
        timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
        with timer.expires(after=60):
            print("once", flush=True)
        with timer.expires(after=0.5):
            signal.pause()
        """
    )

    assert hung.wait(PATIENCE_S) == -signal.SIGKILL
    assert hung.stdout is not None
    assert hung.stdout.read() == "once\n"
    assert server.refused == 0


# -- clocks and lateness ---------------------------------------------------------------------------------------


def test_what_counts_is_the_time_that_passes_not_the_wall_clock(server: FileTimerServer) -> None:
    long_ago = FileTimerRequest(os.getpid(), "step", 1.0, 9, after=60.0)

    server.register_timers([long_ago])

    assert server.get_expired_timers(time.time()) == {}
    assert list(server.get_expired_timers(time.time() + 61)) == [os.getpid()]


def test_a_release_in_the_pipe_counts_however_late_it_is_read(path: str) -> None:
    expired: list[TimersExpired] = []
    server = FileTimerServer(path, "run", on_expired=expired.append)
    client = FileTimerClient(path)
    client.acquire("step", time.time() - 1)  # expired before anybody looks
    client.release("step")

    server._run_watchdog()

    assert expired == []
    client.close()
    server.stop()


# -- the client's manners --------------------------------------------------------------------------------------


def test_expires_finds_the_agents_pipe_by_itself(
    server: FileTimerServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", path)
    monkeypatch.setattr(api, "_client", None)

    with expires(after=60, scope="step"):
        server._run_watchdog()
        assert mine(server) == ["step"]
    server._run_watchdog()
    assert mine(server) == []
    assert isinstance(api._client, FileTimerClient)
    api._client.close()


def test_without_a_watchdog_a_timer_cannot_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_client, "CONNECT_WAIT_S", 0.0)
    os.mkfifo(tmp_path / "unread")
    for name in ("unread", "missing"):
        client = FileTimerClient(str(tmp_path / name))
        with pytest.raises(BrokenPipeError, match="no watchdog listens at"):
            client.acquire("step", time.time() + 60)
        client.release("step")


def test_a_watchdog_that_came_anew_is_found_and_one_that_is_gone_needs_no_release(
    server: FileTimerServer, client: FileTimerClient, path: str
) -> None:
    client.acquire("step", time.time() + 60)
    server.stop()
    client.release("step")
    again = FileTimerServer(path, "run")
    client.acquire("step", time.time() + 60)
    again._run_watchdog()

    assert mine(again) == ["step"]
    again.stop()


def test_a_watchdog_that_does_not_read_costs_timers_never_time_nor_releases(
    server: FileTimerServer, client: FileTimerClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        for number in range(20_000):  # more than a pipe holds
            client.acquire(f"scope {number}", time.time() + 60)
        for number in range(200):
            client.release(f"scope {number}")

    assert caplog.messages == ["the watchdog does not keep up; timers are not set until it does"]
    assert client._unsent == {}
    server._run_watchdog()
    left = mine(server)
    assert 0 < len(left) <= TIMERS_MAX
    assert not {f"scope {number}" for number in range(200)} & set(left)


def test_a_release_that_does_not_fit_is_sent_with_what_comes_next(
    server: FileTimerServer, client: FileTimerClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_client, "RELEASE_WAIT_S", 0.0)
    client.acquire("step", time.time() + 60)
    flood = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(flood, b"x" * 4095 + b"\n")
    os.close(flood)

    client.release("step")
    client.acquire("not set", time.time() + 60)
    server._run_watchdog()
    assert mine(server) == ["step"]
    client.acquire("next", time.time() + 60)
    server._run_watchdog()
    assert mine(server) == ["next"]


def test_a_scope_too_long_for_one_piece_is_refused(client: FileTimerClient) -> None:
    with pytest.raises(UsageError, match="shorter name"):
        client.acquire("x" * 5000, time.time() + 60)


@pytest.mark.parametrize("scope", ['"quoted"\n\\', "ümläut ☃", "\ud800", "\0", '{"version": 1'])
def test_any_scope_arrives_as_it_was(server: FileTimerServer, client: FileTimerClient, scope: str) -> None:
    client.acquire(scope, time.time() + 60)
    server._run_watchdog()

    assert mine(server) == [scope]
    client.release(scope)
    server._run_watchdog()
    assert mine(server) == []


# -- rude writers ----------------------------------------------------------------------------------------------


def test_a_request_for_another_programs_process_is_ignored(server: FileTimerServer, path: str) -> None:
    for pid in (1, os.getppid(), 2**30):
        with Path(path).open("w") as pipe:
            pipe.write(FileTimerRequest(pid, "step", time.time() - 1, 9).to_json() + "\n")
    server._run_watchdog()

    assert server.get_expired_timers(time.time()) == {}
    assert server.refused == 3


def test_a_pid_that_was_given_to_another_process_is_not_signalled(server: FileTimerServer) -> None:
    first = subprocess.Popen(["sleep", "600"])
    second = subprocess.Popen(["sleep", "600"])
    try:
        server.register_timers([FileTimerRequest(each.pid, "step", time.time() - 1, 9) for each in (first, second)])
        # As if the pid of the first had been used again: what is known of it is another process's start.
        server._known[first.pid] = server._known[first.pid].__class__(first.pid, 1, 1, "S", 12345)
        assert server._reap_worker(first.pid, signal.SIGKILL)
        assert server._reap_worker(second.pid, signal.SIGKILL)

        assert second.wait(PATIENCE_S) == -signal.SIGKILL
        assert first.poll() is None
    finally:
        for each in (first, second):
            each.kill()
            each.wait()


def test_rude_writers_cost_no_other_process_a_timer(server: FileTimerServer, worker: Callable, path: str) -> None:
    server.start()
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    steady = worker(
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        for number in range(3000):
            with expires(after=60, scope="step"):
                pass
        print("done", flush=True)
        signal.sigwait([signal.SIGUSR1])
        with expires(after=0.2, scope="hang"):
            signal.pause()
        """
    )
    pieces = [b"garbage\n", b'{"version": 1, "pid": ', b"\0" * 5000, b"\n", b"{" * 9000, b'{"version": 1}\n']
    data = json.loads(FileTimerRequest(steady.pid, "step", 5, 9).to_json())
    pieces += [json.dumps({**data, "signal": 9999}).encode() + b"\n", json.dumps({**data, "pid": 1}).encode()]
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    while not select.select([steady.stdout], [], [], 0)[0]:
        with contextlib.suppress(BlockingIOError):
            os.write(fd, dice.choice(pieces)[: dice.randrange(1, 10_000)])
    assert steady.poll() is None, seed
    # Once they have gone, leaving half a line behind, timers work as ever.
    moment = threading.Event()
    while struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]:
        moment.wait(0.01)
    os.close(fd)
    steady.send_signal(signal.SIGUSR1)

    assert steady.wait(PATIENCE_S) == -signal.SIGKILL, seed
    assert server.refused > 0


def test_the_pipe_is_ours_alone_and_goes_away(server: FileTimerServer, path: str) -> None:
    mode = Path(path).stat().st_mode
    assert stat.S_ISFIFO(mode)
    assert stat.S_IMODE(mode) == 0o600
    server.stop()
    server.stop()
    assert not Path(path).exists()


def test_a_pipe_that_was_left_behind_is_replaced_but_nothing_else_is(tmp_path: Path, path: str) -> None:
    os.mkfifo(path)
    FileTimerServer(path, "run").stop()
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(UsageError, match="in the way"):
        FileTimerServer(str(precious), "run")
    with pytest.raises(UsageError, match="cannot make"):
        FileTimerServer(str(tmp_path / "no" / "folder"), "run")
    assert precious.read_text() == "data"


def test_two_watchdogs_do_not_share_a_pipe(server: FileTimerServer, path: str) -> None:
    with pytest.raises(UsageError, match="another watchdog"):
        FileTimerServer(path, "run")


def test_progress_is_told_as_long_as_the_thread_comes_round(path: str) -> None:
    server = FileTimerServer(path, "run", max_interval=0.01)
    assert server.get_last_progress_time() == pytest.approx(time.time(), abs=2)
    server.start()
    held = threading.Event()
    moved = server._last_progress
    while server._last_progress == moved:
        held.wait(0.01)
    server.stop()


def test_a_handler_that_raises_does_not_end_the_watch(
    path: str, worker: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    calls: queue.SimpleQueue[TimersExpired] = queue.SimpleQueue()

    def on_expired(expired: TimersExpired) -> None:
        calls.put(expired)
        raise ValueError("mine")

    server = FileTimerServer(path, "run", on_expired=on_expired)
    server.start()
    client = FileTimerClient(path)
    for scope in ("first", "second"):
        client.acquire(scope, time.time() - 1)
        assert [timer.scope for timer in calls.get(timeout=PATIENCE_S).timers] == [scope]
    server.stop()
    client.close()

    assert caplog.text.count("ValueError: mine") == 2


def test_a_server_that_is_not_started_can_be_made_to_judge_once(
    server: FileTimerServer, worker: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = worker("print(os.getpid(), flush=True); signal.pause()")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    server.register_timers([FileTimerRequest(pid, "scope", time.time() - 1, signal.SIGKILL)])

    assert server.is_process_running(pid)
    server.run_once()

    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert not server.is_process_running(pid)


def test_a_pipe_that_is_swapped_for_another_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkfifo

    def swap(path: str, mode: int) -> None:
        make(str(tmp_path / "theirs"), mode)
        Path(path).symlink_to(tmp_path / "theirs")

    monkeypatch.setattr(os, "mkfifo", swap)

    with pytest.raises(UsageError, match="pipe"):
        FileTimerServer(str(tmp_path / "pipe"), "run")
