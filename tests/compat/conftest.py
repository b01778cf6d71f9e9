"""Programs of their own: what a name leads to is a matter of the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import WITHOUT_TORCH

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs Python with these arguments in a folder of its own, and fails unless that ends as expected."""

    def start(*arguments: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), **environ},
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return start


@pytest.fixture
def run_without_torch(run: Run, tmp_path: Path) -> Run:
    """The same where torch is not installed, also for the workers that such a program starts."""
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text(WITHOUT_TORCH)

    def start(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, PYTHONPATH=str(bare), **more)

    return start
