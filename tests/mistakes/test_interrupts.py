"""Ctrl-C at any moment: an exit code of 130, no traceback of ours, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import pytest

from tests.mistakes.conftest import PATIENCE_S, Invoke, Said

STUBBORN = """
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("up", flush=True)
signal.pause()
"""
PATIENT = """
import signal
print("up", flush=True)
signal.pause()
"""


class Terminal:
    """A command in a process group of its own, to which Ctrl-C goes as a terminal sends it."""

    def __init__(self, *words: str, python: tuple[str, ...] = (), variables: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *python, "-m", "holdfast", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            env={**os.environ, **(variables or {})},
        )
        assert self.process.stdout is not None
        self.out: IO[str] = self.process.stdout
        self.seen = ""

    def wait_for(self, piece: str) -> None:
        for line in self.out:
            self.seen += line
            if piece in line:
                return
        raise AssertionError(f"ended without '{piece}': {self.seen}")

    def press(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> Said:
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return Said(self.process.returncode, self.seen + out, "")


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (("launch", "--no-python", "true"), "holdfast.errors"),
        (("run", "utils.echo"), "holdfast.runner.config"),
        (("list",), "holdfast.cli.tables"),
        (("serve", "localhost:0"), "holdfast.wire.secret"),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_while_modules_are_imported(words: tuple[str, ...], last: str, early: bool, terminals: list[Terminal]) -> None:
    """Python tells of each module that it has imported, which says when to press."""
    terminal = Terminal(*words, python=("-X", "importtime"))
    terminals.append(terminal)
    terminal.wait_for("click.exceptions" if early else f" {last}\n")
    terminal.press()
    said = terminal.end()

    assert "\nKeyboardInterrupt\n" not in said.out, "which is how a traceback ends"
    assert said.code in (130, -signal.SIGINT, 0), "0: it was done before"


def test_while_nodes_are_waited_for(terminals: list[Terminal]) -> None:
    terminal = Terminal("launch", "--nnodes", "2", "--rdzv-endpoint", "localhost:0", "ok.py")
    terminals.append(terminal)
    terminal.wait_for("1 of 2 nodes")
    terminal.press()
    said = terminal.end()

    assert said.code == 130
    assert "stopped by SIGINT" in said.out
    assert "Traceback" not in said.out


def test_while_it_trains(terminals: list[Terminal]) -> None:
    Path("patient.py").write_text(PATIENT)
    terminal = Terminal("launch", "patient.py")
    terminals.append(terminal)
    terminal.wait_for("up")
    terminal.press()
    said = terminal.end()

    assert said.code == 130
    assert "stopped by SIGINT" in said.out
    assert "src/holdfast" not in said.out


def test_twice_when_workers_do_not_listen(terminals: list[Terminal]) -> None:
    Path("stubborn.py").write_text(STUBBORN)
    terminal = Terminal("launch", "stubborn.py")
    terminals.append(terminal)
    terminal.wait_for("up")
    terminal.press()
    terminal.wait_for("stopping workers: received SIGINT")
    terminal.press()
    said = terminal.end()

    assert said.code == 130
    assert "stopping workers: received SIGINT again" in said.out
    assert "Traceback" not in said.out


def test_while_a_job_is_watched(terminals: list[Terminal], invoke: Invoke) -> None:
    Path("patient.py").write_text(PATIENT)
    terminal = Terminal("run", "-j", "1x1", "patient.py")
    terminals.append(terminal)
    terminal.wait_for("up")
    terminal.press()
    said = terminal.end()

    assert said.code == 130
    assert "press Ctrl-C again to kill it" in said.out
    assert "Traceback" not in said.out
    assert invoke("list", "--json").data[0]["state"] == "CANCELLED"


def test_while_a_job_is_cancelled(terminals: list[Terminal], invoke: Invoke) -> None:
    Path("stubborn.py").write_text(STUBBORN)
    terminal = Terminal("run", "-cfg", "cancel_grace_s=1000", "-j", "1x1", "stubborn.py")
    terminals.append(terminal)
    terminal.wait_for("up")
    terminal.press()
    terminal.wait_for("press Ctrl-C again")
    terminal.press()
    said = terminal.end()

    assert said.code == 130
    assert "was killed" in said.out
    assert "Traceback" not in said.out
    states = (invoke("list", "--json").data[0]["state"] for _ in range(100))
    assert "CANCELLED" in states  # its supervisor may still be writing that down


def test_a_coordinator_says_goodbye(terminals: list[Terminal]) -> None:
    terminal = Terminal("serve", "localhost:0")
    terminals.append(terminal)
    terminal.wait_for("coordinator at")
    terminal.press()
    said = terminal.end()

    assert said.code == 0
    assert "agents go on and look for the next coordinator here" in said.out


def test_while_events_are_followed(terminals: list[Terminal]) -> None:
    Path("patient.py").write_text(PATIENT)
    launch = Terminal("launch", "--log-dir", "logs", "patient.py")
    terminals.append(launch)
    launch.wait_for("up")
    terminal = Terminal("events", "--follow", "logs")
    terminals.append(terminal)
    terminal.wait_for("round 1")
    terminal.press()
    said = terminal.end()

    assert said.code in (0, 130)
    assert "Traceback" not in said.out
    launch.press()
    assert launch.end().code == 130


def test_while_the_interpreter_ends(terminals: list[Terminal]) -> None:
    """What a program has registered for its end runs when the command is over."""
    Path("sitecustomize.py").write_text(
        "import atexit, sys\n"
        "def last():\n"
        "    sys.stdout.write('last\\n'); sys.stdout.flush()\n"
        "    while True: pass\n"
        "if 'holdfast' in ' '.join(sys.orig_argv) and 'launch' in sys.orig_argv: atexit.register(last)\n"
    )
    terminal = Terminal("launch", "--preload", "none", "ok.py", variables={"PYTHONPATH": str(Path.cwd())})
    terminals.append(terminal)
    terminal.wait_for("last")
    terminal.press()
    said = terminal.end()

    assert said.code == -signal.SIGINT
    assert "KeyboardInterrupt" not in said.out
