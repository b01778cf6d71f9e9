"""The few Linux calls that the standard library does not offer, each as one typed function.

Only Linux is supported in full. Elsewhere these functions raise `Unavailable` with the name of what is
missing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from holdfast.errors import Unavailable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

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


def _prctl(option: int, value: int) -> None:
    if _libc is None:
        raise Unavailable("prctl exists on Linux only")
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def open_pidfd(pid: int) -> int:
    """Open a descriptor that becomes readable when the process ends."""
    if not hasattr(os, "pidfd_open"):
        raise Unavailable("pidfd_open needs Linux 5.3 or newer")
    return os.pidfd_open(pid)


def wait_status(pidfd: int, *, keep: bool) -> int | None:
    """Return the exit code of the child behind `pidfd` (negative for a signal), or None while it runs.

    With `keep` the dead child stays a zombie: its pid, which is also the id of its process group and
    session, cannot be given to anybody else, so that what is left of the group can be signalled without
    hitting a stranger. Raises ChildProcessError where somebody else has taken the status.
    """
    options = os.WEXITED | os.WNOHANG | (os.WNOWAIT if keep else 0)
    result = os.waitid(os.P_PIDFD, pidfd, options)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
