"""Output without a reader, and screens that can show little."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.mistakes.conftest import PATIENCE_S, Invoke, Said, shell


def on_terminal(*words: str, columns: int = 80, rows: int = 24, term: str = "xterm") -> Said:
    """Run a command on a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": term},
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:  # the last one who had it open has closed it
        pass
    os.close(ours)
    return Said(process.wait(PATIENCE_S), seen.decode(), "")


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_a_shell_has_closed(streams: str) -> None:
    Path("quiet.py").write_text("import pathlib; pathlib.Path('done').touch()")
    said = shell(f"holdfast launch quiet.py {streams}; echo $? > code")

    assert Path("code").read_text() == "0\n"
    assert Path("done").exists()
    assert "Traceback" not in said.err


@pytest.mark.parametrize("words", ["builtins", "runopts", "plugins", "--help"])
def test_a_reader_that_closes_the_pipe(words: str) -> None:
    said = shell(f"holdfast {words} | true; exit ${{PIPESTATUS[0]}}")

    assert said.code in (0, 141), said.err
    assert said.err == ""


def test_a_launch_whose_readers_leave_goes_on() -> None:
    Path("quiet.py").write_text("import pathlib; pathlib.Path('done').touch()")
    said = shell("holdfast launch quiet.py 2>&1 | true; exit ${PIPESTATUS[0]}")

    assert said.code == 0
    assert Path("done").exists()


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (10, 3), (0, 0)])
@pytest.mark.parametrize("term", ["dumb", "xterm", ""])
def test_tiny_and_dumb_terminals(columns: int, rows: int, term: str) -> None:
    said = on_terminal("builtins", columns=columns, rows=rows, term=term)

    assert said.code == 0, said.out
    assert "utils.echo" in said.out


def test_a_launch_on_a_tiny_terminal() -> None:
    said = on_terminal("launch", "ok.py", columns=5, rows=1)

    assert said.code == 0
    assert "ok" in said.out
    assert "finished" in said.out


def test_a_table_on_a_tiny_terminal(invoke: Invoke) -> None:
    assert invoke("run", "utils.echo").code == 0
    said = on_terminal("list", columns=10)

    assert said.code == 0
    assert "echo" in said.out


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
)
def test_locales_that_know_few_letters(variables: dict[str, str]) -> None:
    said = shell("holdfast run utils.echo --msg 'grüße … 東京' && holdfast list && holdfast events --help", **variables)

    assert said.code == 0, said.err
    assert "succeeded" in said.err
    assert "Traceback" not in said.err


def test_no_home_and_no_terminal_in_the_environment() -> None:
    said = shell("unset TERM COLUMNS HOME; holdfast list")

    assert said.code == 0, said.err


def test_optimised_python() -> None:
    """With -O there are no asserts; everything works all the same."""
    command = [sys.executable, "-O", "-m", "holdfast", "launch", "ok.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
