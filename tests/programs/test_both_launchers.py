"""The same programs under torchrun and under `holdfast launch`, warm and cold: they must print the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.scripts import PROGRAMS, Program

pytest.importorskip("torch", reason="needs torch")
pytestmark = pytest.mark.torch

#: Imports torchrun once and forks for every launch: its import takes longer than most of these programs.
TORCHRUN = """
import os, sys, traceback
import torch.distributed.run as torchrun

for line in sys.stdin:
    folder, *arguments = line.rstrip("\\n").split("\\t")
    pid = os.fork()
    if not pid:
        os.chdir(folder)
        for number, (name, flags) in enumerate(
            [("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY | os.O_CREAT), ("stderr", os.O_WRONLY | os.O_CREAT)]
        ):
            os.dup2(os.open(name, flags), number)
        code = 0
        try:
            torchrun.main(arguments)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Torchrun:
    """Runs launches under torchrun, one after the other."""

    def __init__(self) -> None:
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TORCHRUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )

    def run(self, folder: Path, arguments: list[str], stdin: str) -> str:
        """Run one launch in a folder and return what its workers printed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        (folder / "stdin").write_text(stdin)
        self.process.stdin.write("\t".join([str(folder), *arguments]) + "\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline():
            raise AssertionError("torchrun's process has ended")
        return (folder / "stdout").read_text(errors="replace")


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    made = Torchrun()
    yield made
    made.process.kill()
    made.process.communicate()


def lay_out(folder: Path, program: Program) -> list[str]:
    """Write a program and the files beside it; return what names it on a command line."""
    folder.mkdir()
    (folder / "train.py").write_text(program.head + program.code)
    for name, text in program.files.items():
        (folder / name).write_text(text)
    return ["--module", "train", *program.args] if program.module else [str(folder / "train.py"), *program.args]


def ours(folder: Path, program: Program, preload: str) -> str:
    named = lay_out(folder, program)
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    environ["HOLDFAST_HOME"] = str(folder / "home")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast",
            "launch",
            "--nproc-per-node=2",
            *program.flags,
            f"--preload={preload}",
            *named,
        ],
        cwd=folder,
        env=environ,
        input=program.stdin,
        capture_output=True,
        check=False,
    )
    print(done.stderr.decode(errors="replace"))
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_the_same_under_both_launchers(torchrun: Torchrun, tmp_path: Path, name: str) -> None:
    program = PROGRAMS[name]
    named = lay_out(tmp_path / "torchrun", program)
    wanted = torchrun.run(tmp_path / "torchrun", ["--nproc-per-node=2", *program.flags, *named], program.stdin)
    warm = ours(tmp_path / "warm", program, program.preload)
    cold = ours(tmp_path / "cold", program, "none")

    def lines(text: str) -> list[str]:
        """Ranks may come in any order; the lines of one may not."""
        return sorted(text.splitlines(keepends=True), key=lambda line: line.partition(":")[0])

    assert wanted, "the program printed nothing under torchrun"
    assert {"warm": lines(warm), "cold": lines(cold)} == {"warm": lines(wanted), "cold": lines(wanted)}
