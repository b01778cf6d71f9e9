"""A child: one started process, its end as an event, and its exit code."""

from __future__ import annotations

import os
from typing import Protocol

from holdfast.workers import linux

#: The exit code that stands for one that other code took (a foreign waitpid(-1) in this process).
EXIT_CODE_TAKEN = 255


class Child(Protocol):
    """A started process; `fd` becomes readable when it has ended."""

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its session and process group."""

    @property
    def fd(self) -> int:
        """What to wait on."""

    def status(self) -> int | None:
        """Return its exit code (negative for a signal), or None while it runs."""

    def release(self) -> None:
        """Release a child that has ended: its pid may be used again from now on."""


class OwnChild:
    """A direct child of this process, watched through a pidfd.

    It stays a zombie until `release`, so that its process group can be signalled safely until then.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = linux.open_pidfd(pid)

    def status(self) -> int | None:
        """Return the exit code once it has ended; 255 if other code has taken it."""
        try:
            return linux.wait_status(self.fd, keep=True)
        except ChildProcessError:
            return EXIT_CODE_TAKEN

    def release(self) -> None:
        """Reap it if it has ended, and close the pidfd."""
        try:
            linux.wait_status(self.fd, keep=False)
        except ChildProcessError:
            pass
        finally:
            os.close(self.fd)
