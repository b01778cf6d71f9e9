"""Sinks: where captured output ends up. Each takes what it can and never raises because of the outside."""

from __future__ import annotations

import errno
import os
import select
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.facts import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRITE_BYTES = 64 * 1024


class Console(Protocol):
    """What shows teed lines to a person; the agent may put its own in place."""

    def write(self, data: bytes) -> None:
        """Show whole lines, each ended by a newline."""


class FdConsole:
    """Shows lines through a descriptor, normally the agent's own stdout or stderr.

    Many streams share one console, so writes are serialised. A console that has gone away (a closed pipe, a
    hung-up terminal) is left alone from then on: workers go on and their files stay complete.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._gone = False

    def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for a slow reader."""
        with self._lock:
            view = memoryview(data)
            while view and not self._gone:
                try:
                    view = view[os.write(self._fd, view[:_WRITE_BYTES]) :]
                except BlockingIOError:
                    # Somebody made the terminal non-blocking, which all who share it then suffer from.
                    select.select([], [self._fd], [], 1.0)
                except OSError:
                    self._gone = True


class LogFile:
    """A file that takes bytes as they come, up to an optional limit.

    With `bytes_max` the file is renamed to `<name>.old` when it reaches half of it, replacing the previous
    one, so that the newest output is always there and both together stay within the limit. A write that
    fails is reported once, and the rest of the output still reaches the console.
    """

    def __init__(self, path: str, bytes_max: int | None = None) -> None:
        self.path = path
        self._half = None if bytes_max is None else max(1, bytes_max // 2)
        self._fd: int | None = None
        self._size = 0
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Append the bytes."""
        view = memoryview(data)
        try:
            while view and self._fd is not None:
                if self._half is not None and self._size >= self._half:
                    self._turn_over()
                room = len(view) if self._half is None else min(len(view), self._half - self._size)
                written = os.write(self._fd, view[:room])
                self._size += written
                view = view[written:]
        except OSError as error:
            self._report(error)
            self.close()

    def _turn_over(self) -> None:
        self.close()
        os.replace(self.path, f"{self.path}.old")  # noqa: PTH105 - the path is a string all the way
        self._open()

    def _report(self, error: OSError) -> None:
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        sentence = f"the log file {self.path} is incomplete from here on: {reason}"
        facts.warn("log_incomplete", sentence, path=self.path)

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class SharedFile:
    """A file to which several streams add whole lines; it exists once the first line comes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: LogFile | None = None

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """Append these lines together."""
        if not lines:
            return
        if self._file is None:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._file = LogFile(self._path)
        self._file.write(b"".join(line + b"\n" for line in lines))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
