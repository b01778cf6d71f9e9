"""Shows files of other processes as they grow. The pump shows our own workers' output, without polling.

For programs written for TorchElastic, whose tee is a file and a thread that looks into it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TextIO

_log = logging.getLogger("holdfast")


def _take_all(line: str) -> bool:
    del line
    return True


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Write the lines of a file to `dst`, each behind the header, until `finished` is set and all is written."""
    path = Path(file)
    while not path.exists():
        if finished.wait(interval_sec) and not path.exists():
            return
    with path.open(errors="replace") as source:
        while True:
            over = finished.is_set()  # asked before reading: what was written by then is shown
            _show_lines(header, source, dst, log_line_filter or _take_all)
            if over:
                return
            finished.wait(interval_sec)


def _show_lines(header: str, source: IO[str], dst: TextIO, wanted: Callable[[str], bool]) -> None:
    for line in source:
        if wanted(line):
            dst.write(f"{header}{line}")


class TailLog:
    """Tails the files of several ranks, one thread each, from `start` to `stop`."""

    def __init__(
        self,
        name: str,
        log_files: dict[int, str],
        dst: TextIO,
        log_line_prefixes: dict[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Callable[[str], bool] = _take_all,
    ) -> None:
        self._name = name
        self._files = log_files
        self._dst = dst
        self._prefixes = log_line_prefixes or {rank: f"[{name}{rank}]:" for rank in log_files}
        self._interval_s = interval_sec
        self._filter = log_line_filter
        self._finished = {rank: threading.Event() for rank in log_files}
        self._threads = ThreadPoolExecutor(len(log_files), f"{name} tail") if log_files else None
        self._futures: list[Future[Any]] = []
        self._stopped = False

    def start(self) -> TailLog:
        """Begin to show; returns itself."""
        if self._threads is not None:
            for rank, file in self._files.items():
                header = self._prefixes.get(rank, f"[{self._name}{rank}]:")
                work = (header, file, self._dst, self._finished[rank], self._interval_s, self._filter)
                self._futures.append(self._threads.submit(tail_logfile, *work))
        return self

    def stop(self) -> None:
        """Show what is left, and end."""
        for event in self._finished.values():
            event.set()
        for future in self._futures:
            if (error := future.exception()) is not None:
                _log.error("a log of %s cannot be shown: %s", self._name, error)
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._stopped = True

    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stopped
