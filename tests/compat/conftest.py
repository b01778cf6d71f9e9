"""Programs of their own: what a name leads to is a matter of the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import holdfast

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
    """The same where torch is not installed: all other packages are, in a folder of their own."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for each in Path(click.__file__).parent.parent.iterdir():
        if not each.name.startswith("torch") and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    path = os.pathsep.join((str(packages), str(Path(holdfast.__file__).parent.parent)))

    def start(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run("-S", *arguments, PYTHONPATH=path, **more)

    return start
