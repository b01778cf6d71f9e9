"""Telemetry of a training program: its facts become platform metrics and, in a worker, a journal beside its logs.

An agent does this for its own facts. A program that uses our training loop or our checkpoints has facts too: this
starts with the first use of either. A program that uses neither is left alone.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.metrics.platform import PlatformMetrics

_guard = threading.Lock()
_pid = 0
_metrics: PlatformMetrics | None = None
#: How many agents run in this process; an agent reports every fact of its process.
_agents = 0


def tell_facts() -> None:
    """Start to report the facts of this process, a worker or a program on its own; does nothing the second time."""
    global _pid, _metrics
    with _guard:
        if _pid == os.getpid():
            return
        _pid = os.getpid()
        if _metrics is None:  # otherwise this is a fork, and its copy of the object reports
            from holdfast.metrics.platform import PlatformMetrics

            _metrics = PlatformMetrics(os.environ.get("ROLE_NAME", "default"))
            if not _agents:
                _metrics.start()
    error_file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    is_worker = "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ
    if is_worker and error_file.name == "error.json":  # this worker has a log folder
        _open_journal(error_file.with_name("journal.jsonl"))


def agent_begins() -> None:
    """Leave the metrics of this process to an agent that runs in it."""
    global _agents
    with _guard:
        _agents += 1
        if _metrics is not None:
            _metrics.stop()


def agent_ends() -> None:
    """Report again, unless another agent runs here."""
    global _agents
    with _guard:
        _agents -= 1
        if _metrics is not None and not _agents:
            _metrics.start()


def _open_journal(path: Path) -> None:
    from holdfast.events.journal import Journal
    from holdfast.events.platform import RunContext

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
