"""Crews of real worker processes that train with torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ForkServer
from tests.train.conftest import Worker, start_cold

from holdfast.wire.ports import HeldPort

TRAINER = Path(__file__).parent / "trainer.py"

StartWorkers = Callable[..., list[Worker]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own, so that no test meets another's secrets."""
    return {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}


class Coordinator:
    """A coordinator in a process of its own, which can die and come back at the same address."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self._held = HeldPort()
        self.endpoint = f"127.0.0.1:{self._held.port}"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "serve", self.endpoint],
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if self.endpoint in line:
                return
        raise AssertionError("the coordinator did not start")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(240)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._held.close()


@pytest.fixture
def coordinator(environ: dict[str, str]) -> Iterator[Coordinator]:
    """A coordinator that outlives every worker, unless a test ends it."""
    coordinator = Coordinator(environ)
    yield coordinator
    coordinator.close()


@pytest.fixture
def endpoint(coordinator: Coordinator) -> str:
    """Where the workers meet."""
    return coordinator.endpoint


@pytest.fixture
def start_workers(endpoint: str, environ: dict[str, str], fork_server: ForkServer) -> Iterator[StartWorkers]:
    """Start so many workers of one run, each with options of its own; `cold` ones import torch themselves."""
    workers: list[Worker] = []

    def make(*each: dict[str, Any], cold: bool = False, **common: Any) -> list[Worker]:
        start = start_cold if cold else fork_server.start
        for own in each:
            argv = [str(TRAINER), json.dumps({"endpoint": endpoint, **common, **own})]
            workers.append(Worker(start(argv, environ), workers))
        return workers[-len(each) :]

    yield make
    for worker in workers:
        worker.close()
