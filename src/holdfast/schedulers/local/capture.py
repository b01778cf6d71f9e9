"""Capture: a replica's output on its way from its pipes to disk.

Each replica has three files that grow as it writes, over all its attempts:

    stdout.log, stderr.log   its bytes as they are
    combined.log             both, line by line: `<seconds since 1970> <o or e> <line>`

A line ends at a newline, or at a carriage return, as progress bars mean it. One that is longer than `LINE_BYTES_MAX`
comes in pieces. A line of Holdfast's own about output that is missing, because the disk was full, has `h`.

The replica writes to pipes rather than files: a program that opens /dev/stderr again would empty a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from holdfast.workers.lines import LineCutter, Tail

#: A longer line is cut.
LINE_BYTES_MAX = 1024 * 1024
READ_BYTES = 64 * 1024
#: The most that is read from a pipe at a replica's end, where something that escaped may still write.
DRAIN_BYTES_MAX = 16 * 1024 * 1024
TAIL_LINES = 20

STDOUT, STDERR, OURS = b"o", b"e", b"h"
FILES = {STDOUT: "stdout.log", STDERR: "stderr.log"}
COMBINED = "combined.log"


class ReplicaLog:
    """The three files of one replica; output that cannot be written is counted, and never blocks the replica."""

    def __init__(self, folder: Path, notes: list[str]) -> None:
        self.folder = folder
        self._notes = notes  # where the first trouble is told, in a sentence
        self._told = False
        self._fds: dict[str, int] = {}
        self._missing = 0  # bytes of output that are not in the files, since the last that are
        self._torn: set[str] = set()  # files that end in the middle of something

    def write(self, stream: bytes, data: bytes) -> None:
        """Append what came through one pipe."""
        if not self._append(FILES[stream], data):
            self._missing += len(data)

    def write_lines(self, stream: bytes, lines: list[bytes]) -> None:
        """Append lines with the time of now."""
        now = b"%.6f" % time.time()
        if self._missing:
            note = b"%b %b [holdfast: about %d bytes of output are missing here]\n" % (now, OURS, self._missing)
            if not self._append(COMBINED, note):
                return
            self._missing = 0
        head = b"%b %b " % (now, stream)
        data = b"".join(head + line + b"\n" for line in lines)
        if data and not self._append(COMBINED, data):
            self._missing += len(data)

    def close(self) -> None:
        """Close the files."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _append(self, name: str, data: bytes) -> bool:
        """Write all of `data` at the end of a file; return whether that worked."""
        view = memoryview(b"\n" + data if name in self._torn and name == COMBINED else data)
        whole = len(view)
        try:
            fd = self._open(name)
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            if len(view) < whole:
                self._torn.add(name)
            self._note(error)
            return False
        self._torn.discard(name)
        return True

    def _open(self, name: str) -> int:
        if name not in self._fds:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fds[name] = os.open(self.folder / name, flags, 0o600)
        return self._fds[name]

    def _note(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if full else os.strerror(error.errno or 0)
            self._notes.append(f"the logs in {self.folder} are not complete: {reason}")


class ConsoleLog(ReplicaLog):
    """Passes a replica's lines on to our own output, where a container's log is kept; nothing is written to disk."""

    def write(self, stream: bytes, data: bytes) -> None:
        """Wait for whole lines."""

    def write_lines(self, stream: bytes, lines: list[bytes]) -> None:
        """Print lines, each stream to the one of the same name."""
        view = memoryview(b"".join(line + b"\n" for line in lines))
        try:
            while view:
                view = view[os.write(1 if stream == STDOUT else 2, view) :]
        except OSError as error:
            self._note(error)


class Pipe:
    """One stream of one attempt; the supervisor reads it whenever there is something."""

    def __init__(self, log: ReplicaLog, stream: bytes) -> None:
        self.fd, self.writer = os.pipe()
        os.set_blocking(self.fd, False)
        self.tail = Tail(TAIL_LINES)
        self._log = log
        self._stream = stream
        self._cutter = LineCutter(LINE_BYTES_MAX)

    @property
    def path(self) -> str:
        """A name by which this process can open the writing end, until `close_writer`."""
        return f"/proc/self/fd/{self.writer}"

    def close_writer(self) -> None:
        """Close our copy of the writing end, so that the pipe ends with the replica."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def carry(self) -> int:
        """Copy one piece to disk; return its size, 0 at the end, -1 if there is none."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return -1
        if data:
            self._log.write(self._stream, data)
            self._emit(self._cutter.feed(data))
        return len(data)

    def finish(self) -> None:
        """Copy everything that is left, the last unfinished line included, and close."""
        self.close_writer()
        left = DRAIN_BYTES_MAX
        with contextlib.suppress(OSError):
            while left > 0 and (size := self.carry()) > 0:
                left -= size
        self._emit(self._cutter.flush())
        os.close(self.fd)

    def _emit(self, lines: list[bytes]) -> None:
        if lines:
            self.tail.add(lines)
            self._log.write_lines(self._stream, lines)
