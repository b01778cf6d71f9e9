"""The agent that carries the coordinator is lost: another one carries it, and the job goes on. No flag is needed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.wire.ports import HeldPort
from tests.launcher.conftest import Launch

SCRIPT = """
import os, time
print("up", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists("finish"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
def test_the_others_go_on_without_the_agent_that_carried_the_coordinator(
    launch: Callable[..., Launch], tmp_path: Path, number: signal.Signals
) -> None:
    port = HeldPort()
    endpoint = f"127.0.0.1:{port.port}"
    flags = ["--nnodes", "1:3", "--rdzv-endpoint", endpoint, "--lease", "60s", "--shutdown-timeout", "5"]
    jobs = [launch(*flags, "--last-call", "10m", "--rdzv-conf", "quiet=10m", script=SCRIPT) for _ in range(3)]
    for job in jobs:
        job.wait_line("up 3")
    # Of agents on one host any may have been the first: it listens at the endpoint.
    carrier = next(job for job in jobs if listens(job.process.pid, port.port))
    jobs.remove(carrier)

    carrier.process.send_signal(number)
    for job in jobs:
        job.wait_line("up 2")
    (tmp_path / "finish").touch()
    ends = [job.end() for job in jobs]
    carrier.end()
    port.close()

    assert [code for code, _, _ in ends] == [0, 0], ends
    assert sum("carries the coordinator" in err for _, _, err in ends) == 1, ends


def listens(pid: int, port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port}
    links = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            links.add(str(each.readlink()))
    return any(f"socket:[{inode}]" in links for inode in inodes)
