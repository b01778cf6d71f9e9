"""Wiring: what each worker's stdout and stderr are connected to.

One of three ways, the cheapest that does what was asked:

- *inherited*: neither redirected nor teed. A worker alone has the agent's own stream. If there are several, each has
  a pipe of its own (a terminal of its own if the agent has one), whose bytes the pump passes on unchanged but
  whole lines at once. If stdout and stderr of the agent are the same file they share that pipe, so that a
  worker's output stays in order. Nothing of it is kept, so a failure report has no log lines.
- *file*: only redirected. The worker writes to its file itself; a report reads the end of that file.
- *pipe*: teed, filtered, limited in size, or dropped (`os.devnull`). The pump carries it and keeps its last
  lines, also those of a stream that is not shown: they explain its failure.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.workers.lines import LINE_BYTES_MAX, TAIL_LINES_MAX, last_lines
from holdfast.workers.logs import SYS_STREAM, LogsDest
from holdfast.workers.sinks import Console, FdConsole, LogFile, SharedFile, open_log, report_incomplete, surface_of
from holdfast.workers.streams import Capture, Passage, Sinks, Stream
from holdfast.workers.terminals import open_terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.workers.pump import Pump

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
    #: Whether other workers write to the agent's own streams too; None asks whether this gang has several.
    shared: bool | None = None


class Wire:
    """One stream of one worker. `fd` is what the worker gets, or None if it inherits the agent's."""

    def __init__(self, fd: int | None, path: str = "", stream: Stream | None = None) -> None:
        self.fd = fd
        self.path = path
        self.stream = stream

    def close_worker_end(self) -> None:
        """Close our copy of what the worker has got, so that the pipe ends with it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def tail(self) -> tuple[str, ...]:
        """Return the last lines of the stream, or nothing if it is not captured."""
        if self.stream is not None:
            return self.stream.tail()
        return _end_of_file(self.path) if self.path else ()


class Wiring:
    """All wires of one gang, and what they share."""

    def __init__(self, dest: LogsDest, options: LogOptions, pump: Pump, *, several: bool = False) -> None:
        self._dest = dest
        self._options = options
        self._pump = pump
        self._shared = several if options.shared is None else options.shared
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
        teed = (local_rank in dest.tee_stdouts, local_rank in dest.tee_stderrs)
        out = self._connect(0, local_rank, dest.stdouts.get(local_rank, SYS_STREAM), teed[0])
        try:
            err = self._connect(1, local_rank, dest.stderrs.get(local_rank, SYS_STREAM), teed[1], beside=out)
        except BaseException:
            out.close_worker_end()
            raise
        self.wires[local_rank] = (out, err)
        return out, err

    def _share(self, fd: int, beside: Wire | None) -> Wire:
        """Connect a worker to the agent's own stream, which other workers use too."""
        try:
            if beside is not None and isinstance(beside.stream, Passage) and surface_of(1) == surface_of(2):
                assert beside.fd is not None
                return Wire(os.dup(beside.fd), stream=beside.stream)
            if os.path.samestat(os.fstat(fd), Path(os.devnull).stat()):
                return Wire(None)
            read_end, write_end, follow = open_terminal(fd) if os.isatty(fd) else (*os.pipe(), None)
        except OSError:
            return Wire(None)  # closed, or no terminal is available: the worker inherits the stream
        return self._attach(Passage(read_end, FdConsole(fd), follow), write_end)

    def _attach(self, stream: Stream, write_end: int, path: str = "") -> Wire:
        try:
            self._pump.attach(stream)
        except BaseException:
            os.close(stream.fd)
            os.close(write_end)
            raise
        return Wire(write_end, path, stream)

    def _connect(self, index: int, local_rank: int, path: str, teed: bool, beside: Wire | None = None) -> Wire:
        if path == SYS_STREAM and not teed:
            return self._share(index + 1, beside) if self._shared else Wire(None)
        real = path if path not in (SYS_STREAM, os.devnull) else ""
        filtered = self._filtered[index]
        if real and not teed and filtered is None and self._options.bytes_max is None:
            try:
                Path(real).parent.mkdir(parents=True, exist_ok=True)
                return Wire(open_log(real), real)
            except OSError as error:
                report_incomplete(real, error)
                real = ""  # a pipe then, so that the worker can write and its last lines are known
        filters = (self._options.stdout_filters, self._options.stderr_filters)[index]
        sinks = Sinks(
            file=LogFile(real, self._options.bytes_max) if real else None,
            console=self._consoles[index] if teed else None,
            prefix=os.fsencode(self._options.prefixes.get(local_rank, "")),
            filtered=filtered,
            filters=[os.fsencode(piece) for piece in filters],
        )
        read_end, write_end = os.pipe()
        return self._attach(Capture(read_end, sinks), write_end, real)

    def settle(self, local_rank: int, timeout: float) -> None:
        """Let the pump catch up with what this worker has written, for at most `timeout` seconds."""
        if streams := _streams(self.wires.get(local_rank, ())):
            self._pump.settle(streams).wait(timeout)

    def disconnect(self, local_rank: int, timeout: float) -> None:
        """Carry what this worker's pipes still hold and close them, within `timeout` seconds."""
        wires = self.wires.pop(local_rank, ())
        for wire in wires:
            wire.close_worker_end()
        if streams := _streams(wires):
            self._pump.finish(streams).wait(timeout)

    def close(self, timeout: float) -> None:
        """Carry what the pipes still hold and close everything, within `timeout` seconds."""
        wires = [wire for pair in self.wires.values() for wire in pair]
        for wire in wires:
            wire.close_worker_end()
        streams = _streams(wires)
        if streams and not self._pump.finish(streams).wait(timeout):
            return  # the pump still uses the shared files, and closes what is its own
        for shared in self._filtered:
            if shared is not None:
                shared.close()


def _streams(wires: Iterable[Wire]) -> list[Stream]:
    return list(dict.fromkeys(wire.stream for wire in wires if wire.stream is not None))


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
