"""What workers write to a terminal, pipe or file that they share: the bytes that torchrun shows, in the same order."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.conftest import Launch

StartLaunch = Callable[..., Launch]

HEAD = "import os, subprocess, sys\nif os.environ['RANK'] != '0': sys.exit()\n"
PROGRAMS = {
    "text without an end": ("sys.stdout.write('half'); os._exit(0)", "half", ""),
    "stderr without an end": ("sys.stderr.write('half'); os._exit(0)", "", "half"),
    "bytes": ("sys.stdout.buffer.write(b'line\\nhalf'); os._exit(0)", "line\nhalf", ""),
    "before and after a child": (
        "print('compiling...', end=' '); subprocess.run(['echo', 'child']); print('done')",
        "compiling... child\ndone\n",
        "",
    ),
    "around a fork": (
        "print('parent', end=' ')\nif not os.fork(): print('kid'); os._exit(0)\nos.wait(); print('again')",
        "parent kid\nagain\n",
        "",
    ),
    "killed": (
        "print('one'); sys.stdout.write('mid'); sys.stderr.write('err'); os.kill(os.getpid(), 9)",
        "one\nmid",
        "err",
    ),
    "a long line": ("sys.stdout.write('x' * 1_000_000); os._exit(0)", "x" * 1_000_000, ""),
    "a progress bar": ("for n in range(3): sys.stderr.write(f'\\r{n}0%')\nos._exit(0)", "", "\r00%\r10%\r20%"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_lost_or_moved(launch: StartLaunch, name: str) -> None:
    body, stdout, stderr = PROGRAMS[name]
    running = launch("-q", "--nproc-per-node", "2", "--preload", "none", script=HEAD + body)
    assert running.process.stdout is not None
    assert running.process.stderr is not None
    out, err = _read_all(running.process)

    assert out == stdout.encode()
    assert err.startswith(stderr.encode())
    assert stderr or not err


def _read_all(process: subprocess.Popen[str]) -> tuple[bytes, bytes]:
    """Read both streams as bytes: text would turn carriage returns into line ends."""
    parts: dict[int, bytes] = {
        stream.fileno(): b"" for stream in (process.stdout, process.stderr) if stream is not None
    }
    out, err = parts
    unread = set(parts)
    while unread:
        for fd in select.select(list(unread), [], [])[0]:
            piece = os.read(fd, 65536)
            parts[fd] += piece
            if not piece:
                unread.discard(fd)
    process.wait()
    return parts[out], parts[err]


def test_stdout_and_stderr_of_a_worker_stay_in_their_order_where_they_go_to_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\nfor n in range(100): print('out', n); print('err', n, file=sys.stderr)\n"
    )
    command = ["holdfast", "launch", "-q", "--nproc-per-node", "2", "--preload", "none", "script.py"]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        check=True,
    )

    lines = done.stdout.splitlines()
    expected = [f"{what} {n}" for n in range(100) for what in ("out", "err")]
    assert sorted(lines) == sorted(2 * expected)
    for n in range(100):
        assert lines.index(f"out {n}") < lines.index(f"err {n}")


def test_a_worker_that_takes_anothers_place_writes_whole_lines(launch: StartLaunch, tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        open(os.environ["HOLDFAST_MEMBER_FILE"], "x").close()
        rank = os.environ["RANK"]
        print("up", rank, os.getpid())
        open(f"go{rank}").close()
        for _ in range(3000):
            print("line", rank * 30, rank * 30, "end")
    """
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"go{rank}")
    options = ("--nproc-per-node", "2", "--max-restarts", "9", "--preload", "none")
    running = launch(*options, script=script)
    ups = [running.wait_line("up ") for _ in range(2)]
    os.kill(next(int(line.split()[-1]) for line in ups if line.startswith("up 1")), signal.SIGKILL)
    running.wait_line("up 1")
    for rank in (0, 1):
        (tmp_path / f"go{rank}").open("w").close()
    code, out, err = running.end()

    assert code == 0, err
    lines = [line for line in out.splitlines() if not line.startswith("up")]
    assert sorted(lines) == sorted([f"line {rank * 30} {rank * 30} end" for rank in ("0", "1")] * 3000)


def test_the_launch_ends_when_all_was_read(launch: StartLaunch) -> None:
    """The reader pauses for longer than a gang waits for its console; nothing is lost for that."""
    script = "import os\nos.write(1, b'x' * 50_000 + b'\\n')\nopen(os.environ['RANK'] + '.ended', 'w').close()"
    running = launch("-q", "--nproc-per-node", "4", "--preload", "none", script=script)
    ended = os.pidfd_open(running.process.pid)
    assert not select.select([ended], [], [], 4.0)[0], "it ended before its output was read"
    os.close(ended)
    code, out, err = running.end()

    assert (code, out) == (0, ("x" * 50_000 + "\n") * 4), err


def test_who_closes_the_pipe_ends_the_workers(tmp_path: Path) -> None:
    (tmp_path / "flood.py").write_text("while True: print('line')\n")
    line = f"'{sys.executable}' -m holdfast launch -q --nproc-per-node 2 --preload none flood.py | head -1"
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        check=True,
    )

    assert done.stdout == "line\n"
    assert "BrokenPipeError" in done.stderr
