"""Crews of real worker processes that tell what they do, line by line."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.ports import HeldPort
from tests.fork_server import ForkServer, Script

#: Four processes that import torch take minutes on a machine that runs other suites beside.
WAIT_S = 400.0


def start_cold(argv: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a script in a new interpreter."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


class Worker:
    """One process and the lines that it writes."""

    def __init__(self, process: subprocess.Popen[str] | Script, others: list[Worker]) -> None:
        self._others = others
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._news: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._news.put(json.loads(line))
        self._news.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait until the worker tells of an event with these fields."""
        while True:
            told = self._news.get(timeout=WAIT_S)
            if told is None:
                raise AssertionError(f"ended without '{event}' {fields}: {self.events[-3:]}\n{''.join(self.errors)}")
            self.events.append(told)
            if told["event"] == event and all(told.get(key) == value for key, value in fields.items()):
                return told

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the worker's end and return its exit code."""
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            others = "".join(other.story() for other in self._others if other is not self)
            raise AssertionError(f"it did not end:\n{self.story()}\nthe others:\n{others}") from None
        for thread in self._threads:
            thread.join(WAIT_S)
        while (told := self._news.get()) is not None:
            self.events.append(told)
        return code

    def story(self) -> str:
        """Where the worker is and what it has said, for the report of a test that waits in vain."""
        return f"{self.process.args} ({self.process.poll()})\n{self.stack()}\n{''.join(self.errors)}\n"

    def stack(self) -> str:
        """Where the worker is, for the report of a test that waits in vain."""
        spy = Path(sys.executable).with_name("py-spy")
        command = [str(spy), "dump", "--pid", str(self.process.pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout if spy.exists() else ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(WAIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that no other test gets meanwhile, and that workers can listen on."""
    held = HeldPort()
    yield held.port
    held.close()


@pytest.fixture
def start(tmp_path: Path, fork_server: ForkServer) -> Iterator[Callable[..., Worker]]:
    """Start a script of this folder with one JSON argument: in a new interpreter, or one that has imported torch."""
    workers: list[Worker] = []
    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

    def make(script: str, *, cold: bool = True, **options: Any) -> Worker:
        argv = [str(Path(__file__).parent / script), json.dumps(options)]
        worker = Worker(start_cold(argv, env) if cold else fork_server.start(argv, env), workers)
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.close()
