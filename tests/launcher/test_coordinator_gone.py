"""A coordinator of its own that is gone for good: workers go on, and the screen says what is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.conftest import Launch

SCRIPT = """
import os, time
print("up", flush=True)
while not os.path.exists("finish"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("told_before", [True, False], ids=["while workers run", "at the end"])
def test_the_end_of_a_job_is_not_silent(launch: Callable[..., Launch], tmp_path: Path, told_before: bool) -> None:
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    serve = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environ,
    )
    assert serve.stdout is not None
    endpoint = serve.stdout.readline().split()[-1]
    flags = ["--nnodes", "1:2", "--rdzv-endpoint", endpoint, "--lease", "2s", "--last-call", "100ms"]
    job = launch(*flags, "--exit-barrier-timeout", "3s", script=SCRIPT)
    job.wait_line("up")

    serve.kill()
    serve.communicate()
    lines = []
    assert job.process.stderr is not None
    if told_before:
        while not lines or "workers go on" not in lines[-1]:
            lines.append(job.process.stderr.readline())
            assert lines[-1], lines
    (tmp_path / "finish").touch()
    code, _, err = job.end()

    assert code == 0, err
    assert "the work here is done, and the coordinator must still hear of it" in err
    assert "out of reach" in err
