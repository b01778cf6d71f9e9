"""Processes that tests read from while they run."""

from __future__ import annotations

import subprocess
import threading
from typing import Any


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
