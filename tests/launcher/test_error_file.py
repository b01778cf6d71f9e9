"""The launcher's own error file, for the program that started it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.failures import errorfile
from tests.launcher.conftest import Launch

StartLaunch = Callable[..., Launch]
SCRIPT = """
    import os, sys
    print("my own", os.environ["TORCHELASTIC_ERROR_FILE"], flush=True)
    if os.environ["RANK"] == "1":
        BODY
"""


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ("raise ValueError('no data')", "ValueError: no data", 1),
        ("sys.exit(7)", "SystemExit: 7", 7),
        (
            "os.kill(os.getpid(), 9)",
            "killed by SIGKILL from outside Holdfast (often the kernel's OOM killer: see dmesg)",
            137,
        ),
    ],
)
def test_the_root_cause_is_left_in_the_launchers_own_error_file(
    launch: StartLaunch, tmp_path: Path, body: str, message: str, code: int
) -> None:
    mine = tmp_path / "mine.json"
    script = SCRIPT.replace("BODY", body)
    got, out, err = launch("--nproc-per-node=2", script=script, TORCHELASTIC_ERROR_FILE=str(mine)).end()
    left = errorfile.read(str(mine))

    assert got == code, err
    assert left is not None
    assert (left.message, left.error_code, left.rank) == (message, code, 1)
    assert ("Traceback" in left.traceback) == (body != "os.kill(os.getpid(), 9)")
    assert str(mine) not in out  # workers have files of their own


def test_what_kept_a_job_from_starting_is_left_too(launch: StartLaunch, tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    words = ("--nnodes", "2", "--join-timeout", "0.2", "--rdzv-backend", "holdfast", "--rdzv-endpoint", "localhost:0")
    code, _, err = launch(*words, script="pass", TORCHELASTIC_ERROR_FILE=str(mine)).end()
    left = errorfile.read(str(mine))

    assert code == 1
    assert left is not None
    assert left.error_code == 1
    assert left.message
    assert left.message in err


@pytest.mark.parametrize("body", ["pass", "os.kill(os.getppid(), 15); __import__('signal').pause()"])
def test_a_job_that_did_not_fail_leaves_nothing(launch: StartLaunch, tmp_path: Path, body: str) -> None:
    mine = tmp_path / "mine.json"
    launch("--nproc-per-node=2", script=SCRIPT.replace("BODY", body), TORCHELASTIC_ERROR_FILE=str(mine)).end()

    assert not os.path.lexists(mine)
