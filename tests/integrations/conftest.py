"""Launches of scripts that train with a framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"

#: What the workers of a launch printed as JSON, by their rank at the end, and everything on stderr.
Ended = tuple[dict[int, dict[str, Any]], str]
Launch = Callable[..., Ended]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run a program of this folder under `holdfast launch`."""

    def run(program: str, *, workers: int = 2, **options: Any) -> Ended:
        folder = tmp_path_factory.mktemp("launch")
        command = [sys.executable, "-m", "holdfast", "launch", "--nproc-per-node", str(workers), "--max-restarts", "1"]
        command += ["--log-dir", str(folder / "logs"), str(PROGRAMS / program)]
        command += [json.dumps({"out": str(folder), **options})]
        environ = {**os.environ, "HOLDFAST_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
        return {line["rank"]: line for line in lines}, done.stderr

    return run
