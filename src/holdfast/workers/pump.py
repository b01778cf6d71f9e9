"""The pump: one thread that carries every captured stream from its pipe to its sinks.

How a stream is read: the worker holds the writing end of a pipe, the pump sleeps in epoll on all reading
ends and takes at most `READ_BYTES` from each in turn. So a worker that floods fills its own pipe and is held
up by the kernel; the others get their turn, and the agent holds one unfinished line and a short tail per
stream, no more.

How a stream ends: when its last writer closes it, or when the agent says so. A grandchild that outlives the
worker and keeps the pipe open blocks nobody: `settle` reads what is there now and shows the last,
unterminated line; `finish` does the same and closes. Both are asked for by other threads through a queue,
and can be waited for with a limit.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.workers.lines import LineCutter, Tail, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.workers.sinks import Console, LogFile, SharedFile

READ_BYTES = 64 * 1024
#: The most that is read from one stream when it is settled: a full pipe, and no endless flood of a
#: grandchild.
SETTLE_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class Sinks:
    """Where one stream goes; every part is optional."""

    file: LogFile | None = None
    console: Console | None = None
    prefix: bytes = b""
    filtered: SharedFile | None = None
    filters: Sequence[bytes] = ()


class Capture:
    """One stream of one worker. The pump's thread alone reads it; anybody may look at its tail."""

    def __init__(self, read_fd: int, sinks: Sinks) -> None:
        os.set_blocking(read_fd, False)
        self.fd = read_fd
        self.ended = False
        self._sinks = sinks
        self._cutter = LineCutter()
        self._tail = Tail()

    def tail(self) -> tuple[str, ...]:
        """Return the last lines that have come through."""
        return self._tail.text()

    def read_once(self) -> int:
        """Carry one piece; returns its size, 0 at the end of the stream, -1 where nothing is there."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return -1
        except OSError:
            data = b""
        if data:
            if self._sinks.file is not None:
                self._sinks.file.write(data)
            self._emit(self._cutter.feed(data))
        return len(data)

    def flush(self) -> None:
        """Pass on the line that has no end yet."""
        self._emit(self._cutter.flush())

    def close(self) -> None:
        """Flush and close everything that belongs to this stream alone."""
        self.flush()
        self.ended = True
        os.close(self.fd)
        if self._sinks.file is not None:
            self._sinks.file.close()

    def _emit(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._tail.add(lines)
        sinks = self._sinks
        if sinks.filtered is not None:
            sinks.filtered.write_lines([sinks.prefix + line for line in lines if matches(line, sinks.filters)])
        if sinks.console is not None:
            sinks.console.write(b"".join(sinks.prefix + line + b"\n" for line in lines))


class Pump:
    """Owns the thread; captures are handed over to it and come to their end through it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._captures: dict[int, Capture] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-pump", daemon=True)
        self._thread.start()

    def attach(self, capture: Capture) -> None:
        """Start carrying this stream."""
        self._ask(lambda: self._attach(capture))

    def settle(self, captures: Iterable[Capture]) -> threading.Event:
        """Read what these streams hold now, their last unterminated lines included; the event says when."""
        return self._each(captures, self._settle)

    def finish(self, captures: Iterable[Capture]) -> threading.Event:
        """Read what these streams hold now and close them, whoever still writes; the event says when."""
        return self._each(captures, self._finish)

    def close(self) -> None:
        """Finish every stream and end the thread; waits for it briefly, since a console may be stuck."""
        self._ask(self._close)
        self._thread.join(1.0)

    def _each(self, captures: Iterable[Capture], act: Callable[[Capture], None]) -> threading.Event:
        wanted, done = tuple(captures), threading.Event()

        def run() -> None:
            for capture in wanted:
                act(capture)
            done.set()

        self._ask(run)
        return done

    def _ask(self, what: Callable[[], None]) -> None:
        self._asked.append(what)
        with contextlib.suppress(OSError):  # the pump is closed: nobody will read, and nobody waits for ever
            os.eventfd_write(self._bell, 1)

    # -- on the pump's own thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            for fd, _ in self._epoll.poll():
                if fd == self._bell:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._bell)
                elif (capture := self._captures.get(fd)) is not None and capture.read_once() == 0:
                    self._forget(capture)
            while self._asked:
                self._asked.popleft()()
        self._epoll.close()
        os.close(self._bell)

    def _attach(self, capture: Capture) -> None:
        self._captures[capture.fd] = capture
        self._epoll.register(capture.fd, select.EPOLLIN)

    def _settle(self, capture: Capture) -> None:
        if capture.ended:
            return
        carried = 0
        while carried < SETTLE_BYTES_MAX:
            size = capture.read_once()
            if size == 0:
                self._forget(capture)
                return
            if size < 0:
                break
            carried += size
        capture.flush()

    def _finish(self, capture: Capture) -> None:
        self._settle(capture)
        if not capture.ended:
            self._forget(capture)

    def _forget(self, capture: Capture) -> None:
        self._epoll.unregister(capture.fd)
        del self._captures[capture.fd]
        capture.close()

    def _close(self) -> None:
        for capture in list(self._captures.values()):
            self._finish(capture)
        self._closing = True


_guard = threading.Lock()
_pumps: dict[int, Pump] = {}


def shared_pump() -> Pump:
    """Return this process's pump, starting it on first use; a forked child gets its own."""
    pid = os.getpid()
    with _guard:
        if pid not in _pumps:
            _pumps.clear()  # a parent's pump has no thread here
            _pumps[pid] = Pump()
        return _pumps[pid]


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()  # the parent may have held it at the moment of the fork


os.register_at_fork(after_in_child=_after_fork)
