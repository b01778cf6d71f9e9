"""Orphans of others fall to us while a gang is open: they are reaped, and the program's own children never."""

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from holdfast.workers import Gang, Program, WorkerPlan
from holdfast.workers.family import family
from holdfast.workers.orphans import LOOKS_MIN, Orphans, is_waited_for
from holdfast.workers.strays import children, read_stat

PATIENCE_S = 240.0


@pytest.fixture
def gang():
    """A gang that stays open during the test."""
    with Gang([WorkerPlan(0, Program(("sleep", "1000")))]) as gang:
        gang.start()
        yield gang


def make_orphan():
    """Have a shell of the program's own leave a process behind; returns its pid."""
    done = subprocess.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, check=True)
    pid = int(done.stdout)
    assert read_stat(pid).ppid == os.getpid(), "it fell to us"
    return pid


def kill(pid):
    fd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([fd], [], [], PATIENCE_S)[0]
    os.close(fd)


def look_often():
    for _ in range(3 * LOOKS_MIN):
        family().orphans.look()


def wait_dead(pid):
    """Wait until a child has ended, and leave its exit code where it is."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_an_orphan_that_ends_while_a_gang_is_open_is_reaped(gang):
    pid = make_orphan()
    look_often()
    assert read_stat(pid) is not None, "it lives"
    kill(pid)

    look_often()

    assert read_stat(pid) is None
    assert gang.running() == [0]


def test_an_orphan_that_outlives_the_gang_is_reaped_when_it_ends(gang, monkeypatch):
    orphans = family().orphans
    monkeypatch.setattr(orphans, "_look_s", 0.01)
    pid = make_orphan()
    thread = orphans._thread
    gang.close()
    kill(pid)

    orphans._wake.set()  # it may rest for a while from before
    thread.join(PATIENCE_S)

    left = [Path(f"/proc/{each}/cmdline").read_text() for each in children(os.getpid()) if read_stat(each)]
    assert not thread.is_alive(), f"another test has left processes: {left}"
    assert read_stat(pid) is None


def test_a_look_that_began_before_the_end_is_not_the_last():
    looks, looking, ended = [], threading.Event(), threading.Event()

    class Slow(Orphans):
        def look(self):
            looks.append(self._open)
            looking.set()
            assert ended.wait(PATIENCE_S)
            return 0

    orphans = Slow(frozenset, look_s=0.01)
    orphans.begin()
    thread = orphans._thread
    assert looking.wait(PATIENCE_S)

    orphans.end()
    ended.set()
    thread.join(PATIENCE_S)

    assert looks == [True, False]


def test_an_orphan_that_comes_while_the_thread_looks_is_reaped(gang, monkeypatch):
    orphans = family().orphans
    monkeypatch.setattr(orphans, "_look_s", 1000.0)  # only this test looks
    listed, made = children(os.getpid()), []

    def list_children(pid):
        if not made and threading.current_thread() is looking:
            made.append(make_orphan())
            closing.start()  # it must not be able to close before what was listed is judged
            closing.join(0.2)
            return listed
        return children(pid)

    looking, closing = threading.Thread(target=orphans.look), threading.Thread(target=gang.close)
    monkeypatch.setattr("holdfast.workers.orphans.children", list_children)
    looking.start()
    looking.join(PATIENCE_S)
    closing.join(PATIENCE_S)
    kill(made[0])

    look_often()

    assert read_stat(made[0]) is None


def test_children_of_the_program_keep_their_exit_codes(gang, long_lived):
    resource_tracker.ensure_running()
    long_lived.add(resource_tracker._resource_tracker._pid)
    waiting = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    forked = os.fork()
    if forked == 0:
        os._exit(5)
    spawned = multiprocessing.get_context("spawn").Process(target=sys.exit, args=(3,))
    spawned.start()
    for pid in (waiting.pid, forked, spawned.pid):
        wait_dead(pid)

    look_often()

    assert waiting.wait() == 7
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 5
    spawned.join()
    assert spawned.exitcode == 3
    spawned.close()


def test_a_child_from_between_two_gangs_keeps_its_exit_code_though_an_orphan_is_still_waited_for():
    with Gang([WorkerPlan(0, Program(("sleep", "1000")))]) as gang:
        gang.start()
        orphan = make_orphan()
    between = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 9"], {})
    wait_dead(between)
    look_often()
    with Gang([WorkerPlan(0, Program(("sleep", "1000")))]) as gang:
        gang.start()
        look_often()
        kill(orphan)
        look_often()

    assert read_stat(orphan) is None
    assert os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]) == 9


def test_a_child_from_before_the_gang_keeps_its_exit_code():
    before = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 9"], {})
    wait_dead(before)
    with Gang([WorkerPlan(0, Program(("sleep", "1000")))]) as gang:
        gang.start()
        look_often()

    assert os.waitstatus_to_exitcode(os.waitpid(before, 0)[1]) == 9


def test_workers_keep_their_exit_codes(gang):
    gang.kill(0)
    wait_dead(gang.pids()[0])

    look_often()

    assert gang.wait_exits(PATIENCE_S)[0].exit_code == -9


def test_a_child_that_was_waited_for_belongs_to_no_object():
    process = subprocess.Popen(["true"])

    assert is_waited_for(process.pid)
    process.wait()
    assert not is_waited_for(process.pid)
