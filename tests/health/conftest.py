"""What the tests of health share: real clients, real owners, and no process left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.health import HealthCheckServer, LastProgress, Limits
from holdfast.workers.strays import descendants, read_stat

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0


@pytest.fixture(autouse=True)
def nobody_left_behind() -> Iterator[None]:
    """Fail the test if it leaves a process below this one, alive or as a zombie."""
    before = set(descendants(os.getpid()))
    yield
    left = [read_stat(pid) for pid in descendants(os.getpid()) if pid not in before]
    assert not [stat for stat in left if stat is not None]


class Answer:
    """What a client got."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def data(self) -> Any:
        return json.loads(self.body)


def ask(port: int, path: str = "/healthz", method: str = "GET", host: str = "127.0.0.1", **headers: str) -> Answer:
    """Ask once, on a connection of its own."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def ask_until(port: int, status: int, path: str = "/healthz") -> Answer:
    """Ask again and again until the answer has this status."""
    until = time.monotonic() + PATIENCE_S
    while (answer := ask(port, path)).status != status:
        assert time.monotonic() < until, f"{path} still says {answer.status}: {answer.text}"
    return answer


def connect(port: int) -> socket.socket:
    """Open a connection for raw bytes."""
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def read_all(sock: socket.socket) -> bytes:
    """Read until the other side ends the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            data += piece
    return data


@pytest.fixture
def serve() -> Iterator[Callable[..., HealthCheckServer]]:
    """Start a server that is stopped after the test; alive and patient unless the test says otherwise."""
    patient = Limits(answer_timeout_s=PATIENCE_S / 2)
    with contextlib.ExitStack() as stack:

        def begin(alive: Callable[[], float] | None = None, port: int = 0, timeout: float = 60, **options: Any):
            server = HealthCheckServer(alive or LastProgress(), port, timeout, **{"limits": patient, **options})
            return stack.enter_context(server)

        yield begin


class Owner:
    """A process that owns a health server and beats, and does what it is told on its standard input."""

    SCRIPT = """
        import ctypes, json, os, select, sys
        from holdfast.health import HealthCheckServer, LastProgress

        pulse = LastProgress()
        status = {"pid": os.getpid()}
        server = HealthCheckServer(pulse, 0, float(sys.argv[1]), status=lambda: status)
        server.start()
        child = 0
        if "fork" in sys.argv and not (child := os.fork()):
            os.read(0, 1)  # holds all that was open at the fork
            os._exit(0)
        print(json.dumps({"port": server.port, "process": server._handle.pid, "child": child}), flush=True)
        while True:
            pulse.beat()
            if select.select([0], [], [], server.look_every_s / 4)[0] and not child:
                word = sys.stdin.readline().strip()
                if word == "grab":  # C code that keeps the interpreter's lock
                    ctypes.PyDLL(None).sleep(600)
                elif word == "hang":
                    select.select([], [], [])
                else:
                    server.stop()
                    sys.exit()
    """

    def __init__(self, timeout: float, *words: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(self.SCRIPT), str(timeout), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        assert self.process.stdout
        told = json.loads(self.process.stdout.readline())
        self.port, self.server_process, self.child = told["port"], told["process"], told["child"]

    def tell(self, word: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """Kill it and wait until what it had started is gone."""
        with contextlib.suppress(ProcessLookupError):
            if self.child:
                os.kill(self.child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        wait_gone(self.server_process)


@pytest.fixture
def own() -> Iterator[Callable[..., Owner]]:
    """Start an owner that is gone after the test."""
    with contextlib.ExitStack() as stack:

        def begin(timeout: float = 60, *words: str, **options: Any) -> Owner:
            owner = Owner(timeout, *words, **options)
            stack.callback(owner.close)
            return owner

        yield begin


def wait_gone(pid: int) -> None:
    """Wait until a process has ended, whichever its parent is."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(PATIENCE_S * 1000), f"process {pid} is still there"
    finally:
        os.close(fd)
