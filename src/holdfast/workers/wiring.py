"""Wiring: what each worker's stdout and stderr are connected to.

One of three ways, the cheapest that does what was asked:

- *inherited*: neither redirected nor teed. The worker has the agent's own stream, a real terminal where there
  is one. Nothing is captured, so a failure report has no log lines of it. Several workers that share a stream
  write it line by line, so that their lines do not mix.
- *file*: only redirected. The worker writes to its file itself; a report reads the end of that file.
- *pipe*: teed, filtered, limited in size, or dropped (`os.devnull`). The pump carries it and keeps its last
  lines, also those of a stream that nobody wants to see: they are what explains its failure.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.workers.lines import LINE_BYTES_MAX, TAIL_LINES_MAX, last_lines
from holdfast.workers.logs import SYS_STREAM, LogsDest
from holdfast.workers.pump import Capture, Pump, Sinks
from holdfast.workers.sinks import Console, FdConsole, LogFile, SharedFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: How much of the end of a file is read for a report.
TAIL_BYTES_MAX = 2 * LINE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How captured lines are shown and kept.

    `prefixes` stand before each line on the console, by local rank. Lines that contain any of the filters'
    pieces are also copied to the filtered files. `bytes_max` limits each stream's file.
    """

    prefixes: Mapping[int, str] = field(default_factory=dict)
    stdout_filters: Sequence[str] = ()
    stderr_filters: Sequence[str] = ()
    bytes_max: int | None = None
    stdout_console: Console | None = None
    stderr_console: Console | None = None


class Wire:
    """One stream of one worker. `fd` is what the worker gets, or None where it inherits the agent's."""

    def __init__(self, fd: int | None, path: str = "", capture: Capture | None = None) -> None:
        self.fd = fd
        self.path = path
        self.capture = capture

    def close_worker_end(self) -> None:
        """Close our copy of what the worker has got, so that the pipe ends with it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def tail(self) -> tuple[str, ...]:
        """Return the last lines of the stream, or nothing where it is not captured."""
        if self.capture is not None:
            return self.capture.tail()
        return _end_of_file(self.path) if self.path else ()


class Wiring:
    """All wires of one gang, and what they share."""

    def __init__(self, dest: LogsDest, options: LogOptions, pump: Pump) -> None:
        self._dest = dest
        self._options = options
        self._pump = pump
        self._consoles = (options.stdout_console or FdConsole(1), options.stderr_console or FdConsole(2))
        self._filtered: list[SharedFile | None] = [None, None]
        for index, (filters, path) in enumerate(
            ((options.stdout_filters, dest.filtered_stdout), (options.stderr_filters, dest.filtered_stderr))
        ):
            if filters and path and path != os.devnull:
                self._filtered[index] = SharedFile(path)
        self.wires: dict[int, tuple[Wire, Wire]] = {}

    def connect(self, local_rank: int) -> tuple[Wire, Wire]:
        """Make the wires for one worker's stdout and stderr."""
        dest = self._dest
        out = self._connect(0, local_rank, dest.stdouts.get(local_rank, SYS_STREAM), local_rank in dest.tee_stdouts)
        try:
            err = self._connect(1, local_rank, dest.stderrs.get(local_rank, SYS_STREAM), local_rank in dest.tee_stderrs)
        except BaseException:
            out.close_worker_end()
            raise
        self.wires[local_rank] = (out, err)
        return out, err

    def _connect(self, index: int, local_rank: int, path: str, teed: bool) -> Wire:
        if path == SYS_STREAM and not teed:
            return Wire(None)
        real = path if path not in (SYS_STREAM, os.devnull) else ""
        filtered = self._filtered[index]
        if real:
            Path(real).parent.mkdir(parents=True, exist_ok=True)
            if not teed and filtered is None and self._options.bytes_max is None:
                return Wire(os.open(real, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644), real)
        filters = (self._options.stdout_filters, self._options.stderr_filters)[index]
        sinks = Sinks(
            file=LogFile(real, self._options.bytes_max) if real else None,
            console=self._consoles[index] if teed else None,
            prefix=os.fsencode(self._options.prefixes.get(local_rank, "")),
            filtered=filtered,
            filters=[os.fsencode(piece) for piece in filters],
        )
        read_end, write_end = os.pipe()
        capture = Capture(read_end, sinks)
        self._pump.attach(capture)
        return Wire(write_end, real, capture)

    def settle(self, local_rank: int, timeout: float) -> None:
        """Let the pump catch up with what this worker has written, for at most `timeout` seconds."""
        captures = [wire.capture for wire in self.wires.get(local_rank, ()) if wire.capture is not None]
        if captures:
            self._pump.settle(captures).wait(timeout)

    def close(self, timeout: float) -> None:
        """Carry what the pipes still hold and close everything, within `timeout` seconds."""
        wires = [wire for pair in self.wires.values() for wire in pair]
        for wire in wires:
            wire.close_worker_end()
        captures = [wire.capture for wire in wires if wire.capture is not None]
        if captures and not self._pump.finish(captures).wait(timeout):
            return  # the pump still uses the shared files, and closes what is its own
        for shared in self._filtered:
            if shared is not None:
                shared.close()


def _end_of_file(path: str) -> tuple[str, ...]:
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - TAIL_BYTES_MAX)
            file.seek(start)
            lines = last_lines(file.read(TAIL_BYTES_MAX), TAIL_LINES_MAX)
    except OSError:
        return ()
    # The first line may be the end of a longer one.
    return lines[1:] if start and len(lines) > 1 else lines
