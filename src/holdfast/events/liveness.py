"""Which runs of this user are live on this host: told from their journals and from the processes that write them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from holdfast.events.entry import CLOSED, decode
from holdfast.events.index import journals_of, recent_runs

#: How many of the latest runs are looked at for one that is live.
RUNS_LOOKED_AT_MAX = 20
#: What is read of a journal's end: its last line says whether it was closed.
TAIL_BYTES = 64 * 1024
#: A process that is younger than its first line by more than this has only got the pid of the one that wrote it.
CLOCK_SLACK_S = 30.0


def live_run() -> str | None:
    """Return the id of the newest run that has a live agent on this host, or None."""
    return next((run for run in recent_runs(RUNS_LOOKED_AT_MAX) if is_live(run)), None)


def is_live(run: str) -> bool:
    """Whether an agent or a worker of this run still writes its journal on this host."""
    return any(
        is_writing(noted.host, noted.pid, noted.time) and not _is_closed(Path(noted.path))
        for noted in reversed(journals_of(run))
    )


def is_writing(host: str | None, pid: int | None, since: float) -> bool:
    """Whether the process of this host that wrote something at `since` is still there."""
    if host != socket.gethostname() or not pid:
        return False
    try:
        return bool(psutil.Process(pid).create_time() <= since + CLOCK_SLACK_S)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True  # it is there, and we may not look at it


def _is_closed(path: Path) -> bool:
    """Whether a journal's last line says that it ends there; one that is gone has ended too."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return True
    last = decode(lines[-1]) if lines else None
    return last is not None and last.kind == CLOSED
