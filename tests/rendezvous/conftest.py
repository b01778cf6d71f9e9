"""Nodes and coordinators as real processes that a test can kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PUPPET = Path(__file__).parent / "puppet.py"


class Node:
    """One node in its own process."""

    def __init__(self, environ: dict[str, str], prefix: tuple[str, ...] = (), **options: Any) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(PUPPET), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self.endpoint: str = self.wait("up")["endpoint"]

    def say(self, command: str) -> Node:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self

    def wait(self, what: str) -> dict[str, Any]:
        """Return the next event of a kind; the run's time limit ends a wait for one that never comes."""
        return self.wait_any(what)

    def wait_any(self, *kinds: str) -> dict[str, Any]:
        """Return the next event of one of these kinds."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["what"] in kinds:
                return event
        raise AssertionError(f"the node ended without '{' or '.join(kinds)}'")

    def status(self) -> dict[str, Any]:
        return self.say("status").wait("status")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a home of its own, so that tests do not meet in one user's folder."""
    return {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}


@pytest.fixture
def node(environ: dict[str, str]) -> Iterator[Callable[..., Node]]:
    """Starts nodes; they end with the test."""
    nodes: list[Node] = []

    def start(endpoint: str = "localhost:0", nnodes: str = "1:4", **config: Any) -> Node:
        low, _, high = nnodes.partition(":")
        options = {
            "backend": "holdfast",
            "endpoint": endpoint,
            "run_id": "run",
            "min_nodes": int(low),
            "max_nodes": int(high or low),
            "quiet": "50ms",
            **config,
        }
        nodes.append(Node(environ, **options))
        return nodes[-1]

    yield start
    for each in nodes:
        each.signal(signal.SIGCONT)
        each.kill()
        for stream in (each.process.stdin, each.process.stdout):
            if stream is not None:
                stream.close()


class Serve:
    """A `holdfast serve` that can be killed and started again on the same endpoint."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self.endpoint = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Serve:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "holdfast",
                "serve",
                self.endpoint,
                "--state-dir",
                self._environ["HOLDFAST_HOME"] + "/s",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environ,
        )
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().split()[-1]
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@pytest.fixture
def serve(environ: dict[str, str]) -> Iterator[Serve]:
    """A coordinator in its own process."""
    made = Serve(environ)
    yield made.start()
    made.kill()
