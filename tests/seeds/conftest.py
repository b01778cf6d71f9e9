"""The examples of the founding documents: their blocks as they stand, what is filled in, and where they are run."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from tests.launcher.conftest import MARK, marked
from tests.processes import WITHOUT_TORCH

#: One line of a metric, as the documents print it, with its group and name.
METRIC = re.compile(r"\[\d{10}\.\d+\]\[(\w+)\]: ([\w.]+)=(\S+)")
#: What would make a program behave otherwise than in a fresh shell.
NOT_OURS = ("HOLDFAST_METRICS", "HOLDFAST_COMPAT", "PET_", "PYTHONUNBUFFERED", "TORCHELASTIC_", "TORCHX")


def fill(block: str, *filled: tuple[str, str]) -> str:
    """Return a block of a document with its placeholders filled in: everything that is not listed is as it stands."""
    text = dedent(block).lstrip("\n")
    for placeholder, filling in filled:
        assert text.count(placeholder) == 1, f"{placeholder!r} stands {text.count(placeholder)} times in the block"
        text = text.replace(placeholder, filling)
    return text


class Sandbox:
    """A folder of its own, where the files of a document are saved and its commands run."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self.env = {**os.environ, MARK: mark, "HOLDFAST_HOME": str(folder / "state"), "HOME": str(folder)}
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env['PATH']}"  # as in an activated one
        for name in [name for name in self.env if name.startswith(NOT_OURS)]:
            del self.env[name]
        self._started: list[subprocess.Popen[str]] = []

    def save(self, name: str, *parts: str) -> None:
        """Save a file of these parts."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(dedent(part) for part in parts))

    def start(self, *words: str, cwd: str = ".", **environ: str) -> subprocess.Popen[str]:
        """Start a command line; one of `python` has warnings as errors, but for what is merely deprecated."""
        if words[0] == "python":
            words = (sys.executable, "-W", "error", "-W", "default::DeprecationWarning", *words[1:])
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder / cwd,
            env={**self.env, **environ},
        )
        self._started.append(process)
        return process

    def run(self, *words: str, cwd: str = ".", **environ: str) -> str:
        """Run a command line, which must end well, and return what it printed."""
        process = self.start(*words, cwd=cwd, **environ)
        out, err = process.communicate()
        assert process.returncode == 0, f"{out}\n{err}"
        return out

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox; no process that was started from it may be left when the test ends."""
    mark = secrets.token_hex(8)
    made = Sandbox(tmp_path, mark)
    yield made
    made.close()
    left = marked(mark)
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes were left behind: {left}"


@pytest.fixture
def bare(sandbox: Sandbox) -> Sandbox:
    """A sandbox without torch: the names below it answer all the same, and a program starts at once."""
    sandbox.save("bare/sitecustomize.py", WITHOUT_TORCH)
    sandbox.env["PYTHONPATH"] = str(sandbox.folder / "bare")
    return sandbox


#: For what needs torch itself, or shows that its names lead to Holdfast where it is installed as well.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
