"""How many processor cores this process may use, and how much of them some processes have used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.workers.strays import descendants

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> float:
    """Return how many cores this process and its children may use: its CPUs, or the quota of its container."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = _quota()
    return cores if quota is None else min(cores, quota)


def _quota() -> float | None:
    """Return the CPU quota that a container sees of itself, in cores; None where there is none."""
    with contextlib.suppress(OSError, ValueError):
        limit, period = (_CGROUPS / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    with contextlib.suppress(OSError, ValueError):
        limit = (_CGROUPS / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (_CGROUPS / "cpu" / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else None
    return None


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that these processes, and those that they have started, have used so far."""
    ticks = 0
    for each in {each for pid in pids for each in (pid, *descendants(pid))}:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text(errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own time, and that of children that it has waited for
    return ticks / os.sysconf("SC_CLK_TCK")
