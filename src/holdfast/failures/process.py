"""`ProcessFailure` and `ChildFailedError`: failures in TorchElastic's form."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import JobFailedError
from holdfast.failures import errorfile
from holdfast.failures.failure import signal_name as name_of_signal

#: In place of an error file that was never written.
NO_ERROR_FILE = "<N/A>"
#: The lines that frame a message are no longer than this.
WIDTH_MAX = 60


@dataclass
class ProcessFailure:
    """How one worker ended; the derived fields come from its error file, and a damaged file never raises."""

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: str = field(init=False)
    timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        error = errorfile.read(self.error_file)
        if error is None:
            self.error_file = NO_ERROR_FILE
            self.error_file_data = {"message": "<NONE>"}
            self.message = self._message_without_file()
            self.timestamp = int(time.time())
            return
        self.error_file_data = dict(error.data) or {"message": error.message}
        self.message = error.traceback or error.message
        self.timestamp = error.timestamp if error.timestamp is not None else int(time.time())

    def _message_without_file(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        return f"exit code {self.exitcode}; the worker left no traceback"

    def signal_name(self) -> str:
        """The name of the signal that ended the worker, or `<N/A>`."""
        return name_of_signal(self.exitcode) or "<N/A>"

    def timestamp_isoformat(self) -> str:
        """The timestamp as people read it: `2026-01-31_12:00:00`."""
        moment = datetime.fromtimestamp(self.timestamp, tz=UTC).astimezone()
        return moment.strftime("%Y-%m-%d_%H:%M:%S")


class ChildFailedError(JobFailedError):
    """Some workers failed; lists them all, the first failure first."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure]) -> None:
        assert failures, "a ChildFailedError names at least one failure"
        self.name = name
        self.failures = failures
        super().__init__(self.format_msg())

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the rank and the failure with the smallest timestamp; of equals, the one reported first."""
        return min(self.failures.items(), key=lambda item: item[1].timestamp)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return all failures as text, each with its time, ranks, exit code and error file, in torchrun's layout."""
        root, _ = self.get_first_failure()
        title = f"{self.name} FAILED"
        written = {rank: _format(index, rank, each) for index, (rank, each) in enumerate(self.failures.items())}
        lines = [title, *(line for text in written.values() for line in text.splitlines())]
        width = min(max(map(len, lines)), WIDTH_MAX)
        border, section = boarder_delim * width, section_delim * width
        others = [text for rank, text in written.items() if rank != root] or ["  <NO_OTHER_FAILURES>"]
        head = ["", border, title, section, "Failures:", *others, section]
        return "\n".join([*head, "Root Cause (first observed failure):", written[root], border])


def _format(index: int, rank: int, failure: ProcessFailure) -> str:
    exit_name = f" ({failure.signal_name()})" if failure.exitcode < 0 else ""
    message = failure.message.rstrip().replace("\n", "\n  ")
    return "\n".join(
        [
            f"[{index}]:",
            f"  time      : {failure.timestamp_isoformat()}",
            f"  host      : {socket.getfqdn()}",
            f"  rank      : {rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exitcode} (pid: {failure.pid}) {exit_name}",
            f"  error_file: {failure.error_file}",
            f"  traceback : {message}",
        ]
    )
