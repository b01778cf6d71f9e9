"""The command line: in this process where that will do, as a process of its own where signals and pipes matter."""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.launcher.conftest import MARK, marked

#: Everything that a job of a test waits for; no test waits so long.
FOREVER = "1000"
#: How long a process may take to end by itself on a busy machine.
LINGER_S = 30.0


class Said(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What was printed as JSON."""
        return json.loads(self.out)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A home, a state folder and a current folder of the test's own; no process may be left when it ends."""
    mark = secrets.token_hex(8)
    for name in ("TORCHXCONFIG", "HOLDFAST_CONFIG", "LOGLEVEL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {MARK: mark, "HOLDFAST_HOME": str(tmp_path / "state"), "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # as in an activated environment
    (tmp_path / "home").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    yield dict(os.environ)
    left = [pid for pid in marked(mark) if not ends(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes were left behind: {left}"


def ends(pid: int) -> bool:
    """Wait for a process that is about to end: a job is over a moment before its supervisor is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LINGER_S)[0])
    finally:
        os.close(descriptor)


Invoke = Callable[..., Said]


@pytest.fixture
def invoke(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Invoke]:
    """Runs a command in this process."""
    from holdfast.cli import main

    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    handlers, level = root.handlers[:], root.level
    before = ours.handlers[:], ours.propagate

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        root.handlers.clear()  # each command sets up its own
        ours.handlers.clear()
        ours.propagate = True
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        out, err = capsys.readouterr()
        return Said(code, out, err)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.handlers[:], ours.propagate = before


@pytest.fixture
def start(environ: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def popen(*arguments: str, **extra: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **extra,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()
