"""Processes that tests start, read from while they run, and the ports that they listen on."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

from holdfast.wire.ports import HeldPort

#: As `sitecustomize.py` on PYTHONPATH, this is imported before anything else: no torch is found from then on, in the
#: process and in all that it starts.
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname == "torch" else super().find_spec(fullname, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


#: Kept until this process ends: a test's processes may listen on a port until then.
_held: list[HeldPort] = []


def free_port() -> int:
    """Return a port that no other program is given by chance, and that the test's own programs may listen on."""
    _held.append(HeldPort())
    return _held[-1].port


def finish(process: subprocess.Popen[Any]) -> tuple[Any, Any]:
    """Wait for the end of a process and return what is left of its stdout and stderr.

    `communicate` reads past the file objects: after a `readline`, it loses what they have read ahead.
    """
    err: list[Any] = []
    reader = threading.Thread(target=lambda: err.append(process.stderr.read() if process.stderr is not None else None))
    reader.start()
    out = process.stdout.read() if process.stdout is not None else None
    reader.join()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    return out, err[0]
