"""The orphan reaper: a tiny process that kills a gang's grandchildren if the agent dies before it can.

The kernel kills the workers themselves (parent-death signal), but not the processes that they started. The orphan
reaper is a shell that reads a pipe whose other end the agent holds. `drop PID` means that a worker is reaped and its
pid may soon belong to another process; `bye` means that the gang ended well and the reaper may exit. The end of the
pipe means that the agent is gone: the reaper kills the workers' process groups and all processes that carry the gang's
token, and removes the gang's private folder.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCRIPT = """
groups=$2
while read -r word pid; do
  [ "$word" = bye ] && exit 0
  kept=
  for group in $groups; do [ "$group" = "$pid" ] || kept="$kept $group"; done
  groups=$kept
done
for group in $groups; do kill -9 "-$group" 2>/dev/null; done
[ -n "$3" ] && rm -rf -- "$3"
for again in 1 2; do
  grep -ls "$1" /proc/[0-9]*/environ 2>/dev/null |
    while IFS=/ read -r _ _ pid _; do kill -9 "$pid" 2>/dev/null; done
done
"""

DISMISS_TIMEOUT_S = 2.0


class OrphanReaper:
    """The reaper of one gang, from its start until `dismiss`."""

    def __init__(self, token: str, groups: Iterable[int], folder: str | None = None) -> None:
        read_end, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "holdfast-orphan-reaper", token, " ".join(map(str, groups)), folder or ""],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(read_end)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def drop(self, group: int) -> None:
        """Leave this process group alone: the worker that led it is about to be reaped."""
        with contextlib.suppress(OSError):
            os.write(self._write_end, b"drop %d\n" % group)

    def dismiss(self) -> None:
        """End the reaper; it is killed if it does not end in time."""
        with contextlib.suppress(OSError):
            os.write(self._write_end, b"bye\n")
        os.close(self._write_end)
        try:
            self._process.wait(DISMISS_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it was stopped, say
            self._process.kill()
            self._process.wait()
