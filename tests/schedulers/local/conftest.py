"""What the tests of local jobs share: a folder of their own, and nothing that is left behind."""

import contextlib
import json
import os
import select
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.specs import AppDef, Role, is_terminal

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0


class Bench:
    """One session of local jobs in a folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.scheduler = LocalScheduler("test", home)

    def app(self, script, name="job", **role):
        return AppDef(name, [Role("main", "", entrypoint="sh", args=["-c", script], **role)])

    def submit(self, script, cfg=None, **role):
        """Submit a job of one role that runs a shell script, in which a dollar is written twice."""
        return self.scheduler.submit(self.app(script, **role), cfg or {})

    def wait(self, app_id, until=None):
        """Wait until a job has ended, or is as wanted; returns what is said of it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.scheduler.describe(app_id)
            if until(found) if until else is_terminal(found.state):
                return found
            assert time.monotonic() < deadline, f"still {found}"
            self.scheduler.wait_news(app_id, 1.0)

    def wait_line(self, app_id, line, k=0):
        """Wait until a replica has written this line."""
        assert line in self.scheduler.log_iter(app_id, "main", k, should_tail=True), "the job ended without it"

    def lines(self, app_id, k=0, **options):
        """Return a replica's whole log, waiting for the job's end."""
        return list(self.scheduler.log_iter(app_id, "main", k, should_tail=True, **options))

    def replica(self, app_id, k=0):
        return self.scheduler.describe(app_id).roles_statuses[0].replicas[k]

    def folder(self, app_id):
        return self.home / "jobs" / "test" / app_id

    def state(self, app_id):
        return json.loads((self.folder(app_id) / "state.json").read_text())

    def change_state(self, app_id, **changes):
        """Write something else into the record of a job without a supervisor."""
        path = self.folder(app_id) / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def shell(self, code, **options):
        """Start another process in which `scheduler` and `submit` are there; returns it."""
        preamble = f"""
        from pathlib import Path
        from holdfast.schedulers.local.scheduler import LocalScheduler
        from holdfast.specs import AppDef, Role
        scheduler = LocalScheduler("test", Path({str(self.home)!r}))
        def submit(script, cfg=None, **role):
            main = Role("main", "", entrypoint="sh", args=["-c", script], **role)
            return scheduler.submit(AppDef("job", [main]), cfg or {{}})
        """
        text = textwrap.dedent(preamble) + textwrap.dedent(code)
        return subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def shell_says(self, code):
        """Run code in another process and return what it printed."""
        shell = self.shell(code)
        out, err = shell.communicate(timeout=PATIENCE_S)
        assert shell.returncode == 0, err
        return out.strip()


@pytest.fixture
def bench(tmp_path):
    """A bench whose jobs are all ended after the test, and none of whose supervisors lives."""
    found = Bench(tmp_path / "home")
    yield found
    folders = found.scheduler._jobs.all()
    for folder in folders:
        with contextlib.suppress(KeyError, TypeError):
            found.scheduler.delete(folder.path.name)
    assert not [folder.path.name for folder in folders if folder.alive()]


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
        assert poll.poll(max(0.0, until - time.monotonic()) * 1000), f"process {pid} is still there"
        os.close(fd)


@pytest.fixture
def gate(tmp_path):
    """A FIFO that holds a script up until the test opens it."""
    path = tmp_path / "gate"
    os.mkfifo(path)

    class Gate:
        #: What a script says to wait here.
        wait = f"read word < {path}"

        def open(self):
            path.write_text("go\n")

    return Gate()
