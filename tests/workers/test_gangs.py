"""The gangs of a node: workers are replaced for as long as the job lasts, and nothing is left of those before."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.workers import DefaultLogsSpecs, Gang, LogOptions, Script, Std, WorkerPlan
from holdfast.workers.gangs import Gangs
from holdfast.workers.orphan_reaper import OrphanReaper
from holdfast.workers.strays import children, descendants, read_stat

PATIENT = """
    import os, signal, subprocess, sys
    helper = subprocess.Popen(["sleep", "1000"])
    print("up", os.environ["RANK"], helper.pid, flush=True)
    while True:
        signal.pause()
"""


@pytest.fixture
def gang(tmp_path, console, script):
    """Make a gang of these local ranks; it is not started."""
    path = script(PATIENT)
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), Std.ALL, Std.ALL)

    def make(*ranks):
        envs = {rank: {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_NAME": "default"} for rank in ranks}
        options = LogOptions({}, stdout_filters=["up"], stdout_console=console, stderr_console=console)
        return Gang([WorkerPlan(rank, Script(path), envs[rank]) for rank in ranks], logs.reify(envs), options)

    return make


def kill(gangs, rank):
    """Kill a worker and wait for its end; returns its pid."""
    pid = gangs.pids()[rank]
    os.kill(pid, signal.SIGKILL)
    ended = []
    while not ended:
        ended = gangs._of[rank].wait_exits(60)
    assert ended[0].exit_code == -9
    return pid


def held():
    """Count the descriptors and the children of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), len(children(os.getpid()))


def test_replacing_a_worker_gives_back_all_that_the_one_before_held(gang, console):
    gangs = Gangs(gang(0, 1, 2))
    try:
        gangs.start()
        console.wait_line(b"up 0", b"up 1", b"up 2")
        counts = []
        for number in range(12):
            rank = number % 3
            pid = kill(gangs, rank)
            console.lines.clear()
            gangs.replace(gang(rank))
            console.wait_line(b"up %d" % rank)
            assert read_stat(pid) is None, "the dead worker is reaped"
            if number >= 2:
                counts.append(held())
    finally:
        gangs.close()

    # What is closed in the background may be there for a moment longer; a leak adds up.
    assert all(last - first <= 3 for first, last in zip(counts[0], counts[-1], strict=True)), counts


def test_what_a_worker_has_left_is_ended_before_another_takes_its_place(gang, console):
    gangs = Gangs(gang(0, 1))
    try:
        gangs.start()
        mine = int(console.wait_line(b"up 0").split()[-1])
        others = int(console.wait_line(b"up 1").split()[-1])
        kill(gangs, 0)
        gangs.replace(gang(0))
        assert read_stat(mine) is None
        assert others in descendants(os.getpid())
    finally:
        gangs.close()


def test_the_orphan_reaper_leaves_a_pid_alone_that_was_given_back():
    """Another process group may have got the number by then."""
    innocent = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    guilty = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    reaper = OrphanReaper("no such token", [innocent.pid, guilty.pid])
    reaper.drop(innocent.pid)

    os.close(reaper._write_end)  # as if the agent had died
    reaper._process.wait(240)

    assert guilty.wait(240) == -9
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


def test_workers_that_hold_one_copy_of_a_model_go_together(gang, tmp_path):
    gangs = Gangs(gang(0, 1, 2, 3))
    try:
        gangs.start()
        assert list(gangs.replica(3)) == [3]
        Path(gangs._of[1]._beside_error_file(1, "member")).write_text("2")
        assert list(gangs.replica(3)) == [2, 3]
        assert list(gangs.replica(0)) == [0, 1]
    finally:
        gangs.close()


def test_they_go_together_also_before_the_replacements_have_said_so(gang):
    gangs = Gangs(gang(0, 1))
    try:
        gangs.start()
        Path(gangs._of[0]._beside_error_file(0, "member")).write_text("2")
        assert list(gangs.replica(1)) == [0, 1]
        kill(gangs, 0)
        kill(gangs, 1)
        gangs.replace(gang(0, 1))

        assert not gangs.is_member(0)
        assert list(gangs.replica(1)) == [0, 1]
    finally:
        gangs.close()
