"""The few Linux calls that the standard library does not offer, each as one typed function.

Only Linux is supported in full. Elsewhere these functions raise `UnavailableError` with the name of what is
missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

from holdfast.errors import UnavailableError
from holdfast.wire.descriptors import given_limit

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_PR_SET_CHILD_SUBREAPER = 36
_EXACT_NS = 1000

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def set_parent_death_signal(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process `number` when the thread that is its parent ends.

    The parent is the one of this moment. A child calls this once it has been handed to its final parent, and
    then looks whether that parent is still there: it may have died just before.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def set_child_subreaper(on: bool) -> None:
    """Make orphaned descendants become children of this process, or stop it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def sleep_exactly() -> None:
    """Have the kernel end every sleep of this thread when it is due; by default it may add 50 µs."""
    if _libc is not None:
        _libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_EXACT_NS), 0, 0, 0)


def _prctl(option: int, value: int) -> None:
    if _libc is None:
        raise UnavailableError("prctl exists on Linux only")
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def open_pidfd(pid: int) -> int:
    """Open a descriptor that becomes readable when the process ends."""
    if not hasattr(os, "pidfd_open"):
        raise UnavailableError("pidfd_open needs Linux 5.3 or newer")
    return os.pidfd_open(pid)


def wait_status(pidfd: int, *, keep: bool) -> int | None:
    """Return the exit code of the child behind `pidfd` (negative for a signal), or None while it runs.

    With `keep` the dead child stays a zombie: its pid, which is also the id of its process group and
    session, is not given to another process, so that the rest of the group can be signalled without
    hitting another process. Raises ChildProcessError if other code has taken the status.
    """
    options = os.WEXITED | os.WNOHANG | (os.WNOWAIT if keep else 0)
    result = os.waitid(os.P_PIDFD, pidfd, options)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def read_umask() -> int:
    """Return this process's umask; any other way to read it changes it for a moment."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    previous = os.umask(0o022)
    os.umask(previous)
    return previous


def memory_bytes(pid: int) -> int | None:
    """Return the memory that a process holds, pages that several share counted in parts; None where it is gone."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) * 1024
    return None


def inherit_limits(pid: int) -> None:
    """Give a child that another process has forked our own limits, priority and CPUs."""
    for number in sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}):
        with contextlib.suppress(OSError, ValueError):
            if resource.prlimit(pid, number) != (mine := given_limit(number)):
                resource.prlimit(pid, number, mine)
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, pid) != (nice := os.getpriority(os.PRIO_PROCESS, 0)):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):
        if os.sched_getaffinity(pid) != (cpus := os.sched_getaffinity(0)):
            os.sched_setaffinity(pid, cpus)
