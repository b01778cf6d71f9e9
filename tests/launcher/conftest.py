"""Real launches: every process that one starts carries a mark, and none may be left when the test ends."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import finish

MARK = "HOLDFAST_TEST_MARK"


class Launch:
    """One `holdfast launch` in its own process."""

    def __init__(self, arguments: list[str], environ: dict[str, str], cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "launch", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=cwd,
        )
        self.seen: list[str] = []

    def wait_line(self, piece: str) -> str:
        """Read stdout up to a line that contains a piece."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line)
            if piece in line:
                return line.strip()
        _, _, err = self.end()
        raise AssertionError(f"ended without '{piece}': {''.join(self.seen)}\n{err}")

    def end(self) -> tuple[int, str, str]:
        """Wait for the end and return exit code, stdout and stderr."""
        out, err = finish(self.process)
        return self.process.returncode, "".join(self.seen) + out, err

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


def marked(mark: str) -> list[int]:
    """Find every living process that carries the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    """Starts launches; fails the test that leaves a process behind."""
    mark = secrets.token_hex(8)
    environ = {**os.environ, MARK: mark, "HOLDFAST_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    launches: list[Launch] = []

    def start(*arguments: str, script: str | None = None, args: tuple[str, ...] = (), **extra: str) -> Launch:
        command = list(arguments)
        if script is not None:
            path = tmp_path / f"script{len(launches)}.py"
            path.write_text(textwrap.dedent(script))
            command += [str(path), *args]
        launches.append(Launch(command, {**environ, **extra}, tmp_path))
        return launches[-1]

    yield start
    for each in launches:
        each.process.kill()
        each.process.wait()
        for stream in (each.process.stdout, each.process.stderr):
            if stream is not None:
                stream.close()
    left = marked(mark)
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes were left behind: {left}"
