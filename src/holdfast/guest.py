"""Inside a worker: its facts become platform metrics, and lines of a journal beside its logs.

An agent does this for its own facts. A worker that uses our loop or our checkpoints has facts too, and this is done for
them with the first use of either; a program that uses neither is left alone.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from pathlib import Path

_guard = threading.Lock()
_pid = 0


def tell_facts() -> None:
    """Begin to tell this worker's facts; does nothing the second time, and outside of a worker."""
    global _pid
    with _guard:
        if _pid == os.getpid() or "TORCHELASTIC_RUN_ID" not in os.environ or "RANK" not in os.environ:
            return
        _pid = os.getpid()
    from holdfast.metrics.platform import PlatformMetrics

    PlatformMetrics(os.environ.get("ROLE_NAME", "default")).start()
    error_file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if error_file.name == "error.json":  # there is a folder for the logs of this worker
        _open_journal(error_file.with_name("journal.jsonl"))


def _open_journal(path: Path) -> None:
    from holdfast.events.context import RunContext
    from holdfast.events.journal import Journal

    context = RunContext(
        run=os.environ["TORCHELASTIC_RUN_ID"],
        host=socket.gethostname(),
        pid=os.getpid(),
        node=f"rank {os.environ['RANK']}",
        role=os.environ.get("ROLE_NAME", ""),
    )
    journal = Journal(path, context)
    journal.__enter__()
    atexit.register(journal.close)
