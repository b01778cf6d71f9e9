"""The tests' own fork server: what it runs begins and ends like a script in a new interpreter."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server as fork_server_module
from tests.fork_server import PATIENCE_S, ForkServer
from tests.processes import finish
from tests.train.conftest import start_cold

pytest.importorskip("torch", reason="needs torch")
pytestmark = pytest.mark.torch

FACTS = """
import atexit, os, pickle, signal, sys, threading
atexit.register(print, "at the end")
class Thing: pass
print(sys.argv, __name__, __file__, sys.path[0], sys.warnoptions, sys.flags)
print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, sys.modules["__main__"].Thing is Thing)
print(os.getcwd(), sorted(item for item in os.environ.items() if item[0] != "PYTEST_CURRENT_TEST"))
print(sorted(os.listdir("/proc/self/fd")), os.path.realpath("/proc/self/fd/0"), sys.stdin.read())
print([str(signal.getsignal(number)) for number in sorted(signal.valid_signals())], signal.pthread_sigmask(0, []))
print(len(os.listdir("/proc/self/task")), threading.current_thread() is threading.main_thread())
print([name for name in sys.modules if name.startswith(("holdfast", "tests"))])
import torch
print(torch.get_num_threads(), torch.distributed.is_initialized())
print("to stderr", file=sys.stderr)
"""


def ended(process: Any) -> tuple[str, str, int]:
    out, err = finish(process)
    return out, err, process.wait()


def write(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(text)
    return [str(path), "--one", "two"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HOLDFAST_HOME": str(tmp_path)}


def test_a_script_begins_and_ends_as_in_a_new_interpreter(
    fork_server: ForkServer, tmp_path: Path, environ: dict[str, str]
) -> None:
    argv = write(tmp_path, FACTS)

    forked = ended(fork_server.start(argv, environ))

    out, err, code = ended(start_cold(argv, environ))
    assert forked[0].splitlines() == out.splitlines()
    assert forked[1:] == (err, code)
    assert forked[0].endswith("at the end\n")


def test_every_script_draws_random_numbers_of_its_own(
    fork_server: ForkServer, tmp_path: Path, environ: dict[str, str]
) -> None:
    argv = write(tmp_path, "import numpy, random, torch; print(torch.rand(1), numpy.random.rand(), random.random())")

    one, other = (ended(fork_server.start(argv, environ))[0].split() for _ in range(2))

    assert [a == b for a, b in zip(one, other, strict=True)] == [False] * 3


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(7)", 7),
        ("raise ValueError('why')", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import warnings; warnings.warn('an error here')", 1),
    ],
)
def test_its_exit_code_is_its_own(
    fork_server: ForkServer, tmp_path: Path, environ: dict[str, str], code: str, expected: int
) -> None:
    assert ended(fork_server.start(write(tmp_path, code), environ))[2] == expected


def test_what_an_interpreter_reads_at_its_start_cannot_be_changed(
    fork_server: ForkServer, tmp_path: Path, environ: dict[str, str]
) -> None:
    argv = write(tmp_path, "")
    assert ended(fork_server.start(argv, environ))[2] == 0

    _, err, code = ended(fork_server.start(argv, {**environ, "OMP_NUM_THREADS": "5"}))

    assert code == 1
    assert "OMP_NUM_THREADS" in err


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path, environ: dict[str, str]) -> None:
    parent = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(fork_server_module.__file__).parent)!r})
import fork_server
server = fork_server.ForkServer()
script = server.start({write(tmp_path, "")!r}, dict(os.environ))
script.wait()
print(server._server.pid, flush=True)
signal.pause()
"""
    started = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, env=environ)
    assert started.stdout is not None
    pidfd = os.pidfd_open(int(started.stdout.readline()))
    started.kill()
    finish(started)

    assert select.select([pidfd], [], [], PATIENCE_S)[0], "it lives on"
    os.close(pidfd)
