"""Strays: processes that descend from a gang's workers, found so that none is left behind.

The agent is a child subreaper while a gang lives: a process whose parents have died becomes the agent's own
child. So every descendant of a worker is found by walking down from the living workers and from the agent's
own children, which costs in proportion to our own processes and not to those of the host.

A child of the agent counts as a stray if it still is in a worker's session, or if its environment carries the
gang's token. The limit: a process that has left the session *and* emptied its environment *and* lost all its
parents is left alone, because the agent's process may have children of its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.workers.linux import open_pidfd, wait_status
from holdfast.workers.plan import GANG_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC = Path("/proc")

#: Processes beside this one that orphans of our workers fall to: keepers of the templates that these were forked from.
keepers: set[int] = set()

#: How often, and how far apart, a process without an environment is looked at again.
EXEC_LOOKS_MAX, EXEC_LOOK_S = 20, 0.001


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc tells about a process; pid and `start` together name it for good."""

    pid: int
    ppid: int
    session: int
    state: str
    start: int


def read_stat(pid: int) -> Stat | None:
    """Look a process up, or return None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return Stat(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


#: How often a list of children that keeps changing is read before the last one is believed.
_READS_MAX = 10


def children(pid: int) -> list[int]:
    """Return the direct children of a process, those of all its threads.

    The kernel leaves children out of the list while others of them end, and when a thread ends its children go to one
    that may have been asked already. So the list is read until it comes out twice the same.
    """
    found = _list_children(pid)
    for _ in range(_READS_MAX):
        before, found = found, _list_children(pid)
        if found == before:
            break
    return found


def _list_children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are all we need
            with contextlib.suppress(OSError):
                found += map(int, (_PROC / str(pid) / "task" / task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return all that descend from a process, parents before children."""
    found = children(pid)
    for each in found:  # the list grows while it is walked
        found += children(each)
    return found


def find_strays(agent: int, workers: Iterable[int], known: frozenset[int], token: str | None) -> list[Stat]:
    """Return the descendants of these workers (by pid), without the workers, zombies included.

    `known` are the agent's children that must not be touched nor looked into: templates, other gangs'
    workers. Without a token, orphans are known by their session alone: the token does not tell workers of one gang
    apart.
    """
    sessions = frozenset(workers)
    pids: list[int] = []
    for pid in sorted(sessions):
        pids += descendants(pid)
    for pid in (each for parent in (agent, *sorted(keepers)) for each in children(parent)):
        if pid in sessions or pid in known:
            continue
        stat = read_stat(pid)
        if stat is not None and (stat.session in sessions or (token is not None and has_token(pid, token))):
            pids += [pid, *descendants(pid)]
    stats = (read_stat(pid) for pid in dict.fromkeys(pids))
    return [stat for stat in stats if stat is not None]


def end_strays(workers: Iterable[int], known: frozenset[int], token: str | None, timeout: float) -> None:
    """Kill all descendants of these processes and reap those that became ours, within `timeout` seconds."""
    agent, until = os.getpid(), time.monotonic() + timeout
    roots = tuple(workers)
    while time.monotonic() < until:
        found = find_strays(agent, roots, known, token)
        for stat in found:
            with contextlib.suppress(OSError):
                os.kill(stat.pid, signal.SIGKILL)
        for stat in found:
            wait_end(stat.pid, max(0.0, until - time.monotonic()))
        if not found:
            return


def wait_end(pid: int, timeout: float) -> None:
    """Wait until a process has ended, for at most `timeout` seconds, and reap it if it was ours."""
    with contextlib.suppress(OSError):
        fd = open_pidfd(pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if poll.poll(timeout * 1000):
                wait_status(fd, keep=False)
        finally:
            os.close(fd)


def has_token(pid: int, token: str) -> bool:
    """Whether the process was started with this gang's token in its environment."""
    wanted = f"{GANG_VARIABLE}={token}".encode()
    for _ in range(EXEC_LOOKS_MAX):
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        if environment:
            return wanted in environment.split(b"\0")
        stat = read_stat(pid)
        if stat is None or stat.state in "ZX":
            return False
        # In the middle of an exec a process shows no environment, and would seem to belong to another program.
        time.sleep(EXEC_LOOK_S)
    return False
