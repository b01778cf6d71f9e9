"""Sinks: where captured output goes. A sink never raises when a file or console fails.

A sink that fails is given up with one warning that names it and the error. The stream goes on without it: the worker's
pipe is still read, and its other sinks get everything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import weakref
from pathlib import Path
from typing import Protocol

from holdfast.facts import facts

_WRITE_BYTES = 64 * 1024
#: How long one wait for a slow console lasts before it is tried again.
_SLOW_MS = 1000


class Console(Protocol):
    """Shows teed lines to the user; the agent may set its own."""

    def write(self, data: bytes) -> None:
        """Show whole lines, each ended by a newline."""


class _Surface:
    """The shared state of all descriptors of one terminal, pipe or file: one writer at a time, and an open line."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: The stream that has shown the beginning of a line that has no end yet.
        self.owner: object | None = None


_surfaces: weakref.WeakValueDictionary[tuple[int, int], _Surface] = weakref.WeakValueDictionary()


def surface_of(fd: int) -> tuple[int, int]:
    """Name the terminal, pipe or file behind a descriptor; raises OSError if it is closed."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


class FdConsole:
    """Shows lines through a descriptor, normally the agent's own stdout or stderr.

    Many streams share one console, so writes are serialised. A stream may show the beginning of a line; if another one
    writes before its end, the line is ended there. A console that has gone away (a closed pipe, a
    hung-up terminal) is not used any more: workers run on and their files stay complete. One that only has no room
    (a file on a full disk) is tried again with the next lines.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._surface = _Surface()
        with contextlib.suppress(OSError):
            self._surface = _surfaces.setdefault(surface_of(fd), self._surface)
        self.gone = False
        self._told = False

    def is_open_for(self, owner: object) -> bool:
        """Return whether the last thing that was shown is the beginning of this stream's line."""
        return self._surface.owner is owner

    def write(self, data: bytes, owner: object | None = None) -> None:
        """Show lines, waiting for a slow reader; the last one may have no end yet, and belongs to `owner` then."""
        surface = self._surface
        with surface.lock:
            torn = surface.owner is not None and surface.owner is not owner
            surface.owner = None if data.endswith(b"\n") else owner
            self._write(b"\n" + data if torn else data)

    def pass_on(self, data: bytes) -> None:
        """Show bytes as they are."""
        with self._surface.lock:
            self._surface.owner = None
            self._write(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.gone:
            try:
                view = view[os.write(self._fd, view[:_WRITE_BYTES]) :]
            except BlockingIOError:
                # Another process made the terminal non-blocking, which all that share it then suffer from.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll(_SLOW_MS)
            except OSError as error:
                self._lose(error)
                return

    def _lose(self, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        self.gone = not full
        if not self._told and error.errno != errno.EPIPE:  # the program that closed a pipe knows that it is closed
            self._told = True
            name = {1: "stdout", 2: "stderr"}.get(self._fd, f"descriptor {self._fd}")
            then = "some of the workers' output is missing there" if full else "the workers' output is not shown there"
            facts.warn("console_incomplete", f"cannot write to {name}: {_reason(error)}; {then}", descriptor=self._fd)


class LogFile:
    """A file that takes bytes as they come, up to an optional limit.

    With `bytes_max` the file is renamed to `<name>.old` when it reaches half of it, replacing the previous
    one, so that the newest output is always there and both together stay within the limit. A file that cannot be
    opened or written is reported once, and the output still reaches the console.
    """

    def __init__(self, path: str, bytes_max: int | None = None) -> None:
        self.path = path
        self._half = None if bytes_max is None else max(1, bytes_max // 2)
        self._fd: int | None = None
        self._size = 0
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            report_incomplete(path, error)

    def _open(self) -> None:
        self._fd = open_log(self.path)
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
            report_incomplete(self.path, error)
            self.close()

    def _turn_over(self) -> None:
        self.close()
        os.replace(self.path, f"{self.path}.old")  # noqa: PTH105 - the path is a string all the way
        self._open()

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.close(fd)
            except OSError as error:  # some file systems say only now that there was no room
                report_incomplete(self.path, error)


class SharedFile:
    """A file to which several streams add whole lines; it exists once the first line comes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: LogFile | None = None

    def write(self, data: bytes) -> None:
        """Append whole lines."""
        if not data:
            return
        if self._file is None:
            self._file = LogFile(self._path)
        self._file.write(data)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def open_log(path: str) -> int:
    """Open a log file to append to; make it if needed."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def report_incomplete(path: str, error: OSError) -> None:
    """Warn that a log file is given up."""
    sentence = f"the log file {path} is incomplete from here on: {_reason(error)}"
    facts.warn("log_incomplete", sentence, path=path)


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"the disk is full or has no inodes left ({error.strerror})"
    return error.strerror or str(error)
