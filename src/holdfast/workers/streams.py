"""Streams: how the bytes that a worker writes are kept and shown. The pump reads them.

Two kinds. A *capture* is a stream that was asked for: it is cut into lines, which go to a file, to the console with a
prefix, to a filtered file, and into the tail that explains a failure. A *passage* is the stream of a worker that shares
the agent's own stdout or stderr with other workers: its bytes go through as they are, but whole lines at once, so that
lines of several workers do not mix.

A line that takes its time to end (`print("compiling...", end=" ")`, a progress bar, the last words of a process that
was killed) is shown without its end after a moment. Nothing is ever held back for longer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.threads import tell_unexpected
from holdfast.workers.lines import LINE_BYTES_MAX, LineCutter, Tail, matches
from holdfast.workers.sinks import FdConsole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.workers.sinks import Console, LogFile, SharedFile

READ_BYTES = 64 * 1024
#: The thread on which all of this runs.
PUMP = "holdfast-pump"


class Stream(Protocol):
    """One stream of one worker. The pump's thread alone reads it; any thread may look at its tail."""

    fd: int
    ended: bool

    @property
    def waits(self) -> bool:
        """Whether something has been read that is not shown yet because its line has no end."""

    def tail(self) -> tuple[str, ...]:
        """Return the last lines that have come through."""

    def read_once(self) -> int:
        """Carry one piece; returns its size, 0 at the end of the stream, -1 where nothing is there."""

    def show_part(self) -> None:
        """Show what there is of a line that has no end yet."""

    def flush(self) -> None:
        """Pass on the line that has no end yet: no more will come of it."""

    def only_drain(self) -> None:
        """Keep reading and drop everything, so that a mistake of ours does not block the worker."""

    def close(self) -> None:
        """Close everything that belongs to this stream alone."""


def _read(fd: int) -> bytes | None:
    """Return one piece; None if nothing is there now, nothing at the end of the stream."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:  # the other end of a terminal is closed
        return b""


@dataclass(slots=True)
class Sinks:
    """Where one stream goes; every part is optional."""

    file: LogFile | None = None
    console: Console | None = None
    prefix: bytes = b""
    filtered: SharedFile | None = None
    filters: Sequence[bytes] = ()


class Capture:
    """One stream of one worker. The pump's thread alone reads it; any thread may look at its tail."""

    def __init__(self, read_fd: int, sinks: Sinks) -> None:
        os.set_blocking(read_fd, False)
        self.fd = read_fd
        self.ended = False
        self._sinks = sinks
        self._cutter = LineCutter()
        self._tail = Tail()
        self._shown = 0  # bytes of the line without an end that the console shows already
        self._only_drained = False

    @property
    def waits(self) -> bool:
        """Whether there is more of a line without an end than the console shows; only ours shows such lines."""
        return isinstance(self._sinks.console, FdConsole) and len(self._cutter.rest) > self._shown

    def tail(self) -> tuple[str, ...]:
        """Return the last lines that have come through."""
        return self._tail.text()

    def read_once(self) -> int:
        """Carry one piece; returns its size, 0 at the end of the stream, -1 where nothing is there."""
        data = _read(self.fd)
        if data is None:
            return -1
        if data and not self._only_drained:
            self._hand("file", data)
            self._emit(self._cutter.feed(data))
        return len(data)

    def show_part(self) -> None:
        """Show the beginning of a line; it goes to the other sinks when it is whole."""
        console = self._sinks.console
        if isinstance(console, FdConsole):
            goes_on = self._shown and console.is_open_for(self)
            part = (b"" if goes_on else self._sinks.prefix) + self._cutter.rest[self._shown :]
            self._shown = len(self._cutter.rest)
            console.write(part, self)

    def flush(self) -> None:
        """Pass on the line that has no end yet."""
        if not self._only_drained:
            self._emit(self._cutter.flush())

    def only_drain(self) -> None:
        """Keep reading and drop everything, so that a mistake of ours does not block the worker."""
        self._only_drained = True
        self._sinks = Sinks(file=self._sinks.file)  # which is closed at the end

    def close(self) -> None:
        """Close everything that belongs to this stream alone."""
        self.ended = True
        os.close(self.fd)
        if self._sinks.file is not None:
            self._sinks.file.close()

    def _emit(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._tail.add(lines)
        prefix, filters = self._sinks.prefix, self._sinks.filters
        self._hand("filtered", b"".join(prefix + line + b"\n" for line in lines if matches(line, filters)))
        self._hand("console", self._as_shown(lines))

    def _as_shown(self, lines: list[bytes]) -> bytes:
        """Return what the console lacks of these lines: of the first one it may show the beginning already."""
        whole = [self._sinks.prefix + line + b"\n" for line in lines]
        shown, self._shown = self._shown, 0
        if shown and isinstance(self._sinks.console, FdConsole):
            if self._sinks.console.is_open_for(self):
                whole[0] = lines[0][shown:] + b"\n"
            else:  # another line came between, and ended this one
                whole[0] = self._sinks.prefix + lines[0][shown:] + b"\n" if lines[0][shown:] else b""
        return b"".join(whole)

    def _hand(self, name: Literal["file", "filtered", "console"], data: bytes) -> None:
        """Write to one sink; an exception does not affect the others."""
        sink = getattr(self._sinks, name)
        if sink is None or not data:
            return
        try:
            if isinstance(sink, FdConsole):
                sink.write(data, self)
            else:
                sink.write(data)
        except Exception as error:  # noqa: BLE001 - a console of the program's own may raise anything
            setattr(self._sinks, name, None)
            tell_unexpected(PUMP, error, f"one stream goes on without its {name}")


class Passage:
    """A stream that goes through to the agent's own stdout or stderr unchanged, whole lines at once.

    If that is closed (`| head`), this end is closed too: the worker then gets the error that it would have got if the
    stream were its own.
    """

    def __init__(self, read_fd: int, console: FdConsole, follow: Callable[[int], None] | None = None) -> None:
        os.set_blocking(read_fd, False)
        self.fd = read_fd
        self.ended = False
        self._console = console
        self._follow = follow  # keeps a terminal of ours as large as the agent's
        self._rest = b""
        self._only_drained = False

    @property
    def waits(self) -> bool:
        """Whether a line has no end yet."""
        return bool(self._rest)

    def tail(self) -> tuple[str, ...]:
        """Nothing is kept of what the agent's own stream shows."""
        return ()

    def read_once(self) -> int:
        """Carry one piece; returns its size, 0 at the end of the stream, -1 where nothing is there."""
        data = _read(self.fd)
        if data is None:
            return -1
        if data and not self._only_drained:
            if self._follow is not None:
                self._follow(self.fd)
            self._rest += data
            end = self._rest.rfind(b"\n") + 1
            self._pass_on(end if len(self._rest) - end <= LINE_BYTES_MAX else len(self._rest))
            if self._console.gone:
                return 0
        return len(data)

    def show_part(self) -> None:
        """Show the beginning of a line; the rest of it follows when it comes."""
        self._pass_on(len(self._rest))

    def flush(self) -> None:
        """Pass on what is left."""
        self._pass_on(len(self._rest))

    def only_drain(self) -> None:
        """Read on and keep nothing."""
        self._only_drained, self._rest = True, b""

    def close(self) -> None:
        """Close this end."""
        self.ended = True
        os.close(self.fd)

    def _pass_on(self, size: int) -> None:
        if size:
            data, self._rest = self._rest[:size], self._rest[size:]
            self._console.pass_on(data)
