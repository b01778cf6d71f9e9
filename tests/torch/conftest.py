"""Crews of real worker processes that train with torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import Worker

TRAINER = Path(__file__).parent / "trainer.py"

Crew = Callable[..., list[Worker]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own, so that no test meets another's secrets."""
    return {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def endpoint(environ: dict[str, str]) -> Iterator[str]:
    """A coordinator in a process of its own, which outlives every worker."""
    server = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", "127.0.0.1:0"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    told = ""
    for line in server.stdout:
        told += line
        if "127.0.0.1:" in line:
            break
    address = told.rpartition("127.0.0.1:")[2].split()[0].strip(".,;:'\"")
    yield f"127.0.0.1:{address}"
    server.terminate()
    server.wait(30)
    server.stdout.close()


@pytest.fixture
def crew(endpoint: str, environ: dict[str, str]) -> Iterator[Crew]:
    """Start so many workers of one run, each with options of its own."""
    import json

    workers: list[Worker] = []

    def make(*each: dict[str, Any], **common: Any) -> list[Worker]:
        made = [
            Worker(
                [sys.executable, "-W", "error", str(TRAINER), json.dumps({"endpoint": endpoint, **common, **own})],
                environ,
                workers,
            )
            for own in each
        ]
        workers.extend(made)
        return made

    yield make
    for worker in workers:
        worker.close()
