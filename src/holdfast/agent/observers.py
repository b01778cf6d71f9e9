"""Who listens while an agent runs: its journal, events and platform metrics. They tell; they never decide."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import worker_telemetry
from holdfast.events.journal import FILE_NAME, Journal
from holdfast.events.platform import RunContext
from holdfast.events.recording import EventFeed
from holdfast.metrics.platform import PlatformMetrics

if TYPE_CHECKING:
    from holdfast.agent.api import WorkerSpec


class Observers:
    """Everything that is made of an agent's facts; use as a context manager around its run."""

    def __init__(self, spec: WorkerSpec, node: str) -> None:
        self.context = RunContext(
            run=spec.rdzv_handler.get_run_id(),
            host=socket.gethostname(),
            pid=os.getpid(),
            node=node,
            role=spec.role,
            rdzv_backend=spec.rdzv_handler.get_backend(),
            entrypoint=spec.get_entrypoint_name(),
        )
        self._journal = Journal(None, self.context)
        self._events = EventFeed(spec.event_log_handler, self.context)
        self._metrics = PlatformMetrics(spec.role)

    def __enter__(self) -> Observers:
        worker_telemetry.agent_begins()
        self._metrics.start()
        self._events.__enter__()
        self._journal.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()
        self._events.__exit__()
        self._metrics.stop()
        worker_telemetry.agent_ends()

    def place_journal(self, folder: str) -> None:
        """Say in which folder the journal goes, once there is one."""
        if folder and folder != os.devnull:
            self._journal.place(Path(folder) / FILE_NAME)
