"""What the workers' tests share: no process may be left behind, and no test sleeps to wait."""

import contextlib
import os
import select
import signal
import textwrap
import threading
import time
from pathlib import Path

import pytest

from holdfast.workers import DefaultLogsSpecs, Gang, LogOptions, Script, Std, WorkerPlan
from holdfast.workers.strays import descendants, read_stat

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def long_lived():
    """Pids that a whole module shares, on purpose."""
    return set()


@pytest.fixture(autouse=True)
def nobody_left_behind(long_lived):
    """Fail the test if it leaves a process below this one, alive or as a zombie."""
    before = set(descendants(os.getpid()))
    yield
    expected = before | long_lived
    left = [read_stat(pid) for pid in descendants(os.getpid()) if pid not in expected]
    assert not [stat for stat in left if stat is not None]


class RecordingConsole:
    """A console that remembers its lines and lets a test wait for one."""

    def __init__(self):
        self.lines = []
        self._changed = threading.Condition()

    def write(self, data):
        assert data.endswith(b"\n"), "only whole lines reach a console"
        with self._changed:
            self.lines += data[:-1].split(b"\n")
            self._changed.notify_all()

    def wait_line(self, *pieces):
        """Wait until each piece is in some line; return the first line that holds the last piece."""

        def found(piece):
            return next((line for line in self.lines if piece in line), None)

        with self._changed:
            assert self._changed.wait_for(lambda: all(found(piece) is not None for piece in pieces), PATIENCE_S), (
                f"{pieces} never came, only {self.lines}"
            )
            return found(pieces[-1])


@pytest.fixture
def console():
    return RecordingConsole()


@pytest.fixture
def script(tmp_path):
    """Write a Python script and return its path."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def start(tmp_path, console):
    """Start a gang whose output is teed to `console`; closed after the test."""
    with contextlib.ExitStack() as stack:

        def begin(
            entry,
            size=1,
            *,
            env=None,
            redirects=Std.ALL,
            tee=Std.ALL,
            cwd=None,
            template=None,
            standbys=None,
            **options,
        ):
            envs = {
                rank: {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_NAME": "default", **(env or {})}
                for rank in range(size)
            }
            dest = DefaultLogsSpecs(str(tmp_path / "logs"), redirects, tee).reify(envs)
            entry = Script(entry) if isinstance(entry, str) else entry
            plans = [WorkerPlan(rank, entry, envs[rank], cwd=cwd) for rank in range(size)]
            options = {"prefixes": {rank: f"[{rank}]" for rank in range(size)}, **options}
            log_options = LogOptions(stdout_console=console, stderr_console=console, **options)
            gang = Gang(plans, dest, log_options, template=template, standbys=standbys)
            stack.callback(gang.close)
            gang.start()
            return gang

        yield begin


@pytest.fixture
def wait_all():
    """Wait until every worker of a gang has ended; return their ends by local rank."""
    return _wait_all


def _wait_all(gang):
    until = time.monotonic() + PATIENCE_S
    while gang.running():
        gang.wait_exits(until - time.monotonic())
        assert time.monotonic() < until, f"the workers never ended:\n{_stacks(gang)}"
    return gang.exits()


def _stacks(gang):
    """Have the workers that hang print their stacks: fatal signals do that in all that we start."""
    gang.send(signal.SIGABRT)
    gang.wait_exits(5)
    failures = [gang.failure(exited) for exited in gang.exits().values()]
    return "\n".join(f"{each.rank}: {each.traceback}\n" + "\n".join(each.log_lines) for each in failures)


@pytest.fixture
def wait_gone():
    """Wait until these processes have ended, whichever their parent is."""
    return _wait_gone


def _wait_gone(pids):
    until = time.monotonic() + PATIENCE_S
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(max(0.0, until - time.monotonic()) * 1000), f"process {pid} is still there: {_describe(pid)}"
        os.close(fd)


def _describe(pid):
    with contextlib.suppress(OSError):
        return read_stat(pid), Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def marked():
    """Return the pids of all processes on this machine that carry a marker in their environment."""
    return _marked


def _marked(marker):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found
