"""Mistakes of a new user: each is answered by one sentence that says what to do, and leaves nothing behind."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Invoke, Said, environ, invoke, start

__all__ = ["Invoke", "Said", "Start", "answered", "environ", "finish", "invoke", "start"]

Start = Callable[..., "subprocess.Popen[str]"]
#: How long a command may take on a busy machine; none comes near it.
PATIENCE_S = 240


@pytest.fixture(autouse=True)
def scripts(environ: dict[str, str]) -> Iterator[None]:
    """A current folder with a script that works, and loggers that stay as they were."""
    Path("ok.py").write_text("print('ok')\n")
    Path("broken.py").write_text("def f(:\n    pass\n")
    Path("folder").mkdir()
    logger = logging.getLogger("holdfast")
    handlers, propagate = logger.handlers[:], logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate


def answered(said: Said, sentence: str, code: int = 2) -> None:
    """Assert that a mistake got one sentence behind our name, an exit code, and no traceback."""
    assert "Traceback" not in said.out + said.err
    assert sentence in said.err
    assert said.code == code, said.err
    assert said.err.startswith("holdfast: "), said.err
    assert said.err.count("\n") == 1, said.err


def finish(process: subprocess.Popen[str]) -> Said:
    """Wait for the end of a command."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Said(process.returncode, out or "", err or "")


def shell(line: str, **variables: str) -> Said:
    """Run a line of a shell in which `holdfast` is the command."""
    words = f'holdfast() {{ "{sys.executable}" -m holdfast "$@"; }}\n{line}'
    done = subprocess.run(
        ["bash", "-c", words],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def works(*command: str) -> bool:
    """Whether a tool of the system is there and may do what is asked."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def as_anybody(start: Start) -> Callable[..., Said]:
    """Runs a command as a user to which permissions apply: root without the right to pass over them."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-net_bind_service"]
    if os.geteuid() == 0 and not works(*drop, "true"):
        pytest.skip("root's rights cannot be dropped here")
    prefix = drop if os.geteuid() == 0 else []

    def run(*arguments: str, **extra: Any) -> Said:
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "holdfast", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            **extra,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run
