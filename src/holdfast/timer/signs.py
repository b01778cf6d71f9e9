"""Signs of life: what the kernel has counted for each worker. Reads /proc; decides nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.timer.stillness import Signs

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def read_signs(pids: Mapping[int, int]) -> dict[int, Signs]:
    """Return the signs of life of these processes, given and returned by rank.

    Raises `OSError` if the kernel does not show them: a process of another user, a restricted /proc. A worker that
    has just ended is left out.
    """
    cpu, ready = _look_at_sessions(set(pids.values()))
    found = {}
    for rank, pid in pids.items():
        try:
            found[rank] = Signs(pid, cpu.get(pid, 0.0), _wake_ups(pid), _io(pid), pid in ready)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _look_at_sessions(sessions: set[int]) -> tuple[dict[int, float], set[int]]:
    """Return the CPU seconds of each worker's session, and which sessions have a process that is ready to run.

    The time is that of the worker, of its living children and of those that it has waited for.
    """
    ticks, ready = dict.fromkeys(sessions, 0), set()
    for name in os.listdir(_PROC):  # noqa: PTH208 - names are all we need, and there are many
        if not name.isdecimal():
            continue
        try:
            fields = (_PROC / name / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        session = int(fields[3])
        if session in ticks:
            # User and system time, and for the worker itself that of children it has waited for.
            ticks[session] += sum(map(int, fields[11:15] if int(name) == session else fields[11:13]))
            if fields[0] == "R":
                ready.add(session)
    return {session: count / _TICKS_PER_S for session, count in ticks.items()}, ready


def _wake_ups(pid: int) -> int:
    for line in (_PROC / f"{pid}/task/{pid}/status").read_text(errors="replace").splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    raise OSError("the kernel does not count context switches")


def _io(pid: int) -> int:
    """Add up what the main thread has read and written; `rchar`, `wchar`, `syscr` and `syscw` only grow."""
    lines = (_PROC / f"{pid}/task/{pid}/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar", "syscr", "syscw")))
