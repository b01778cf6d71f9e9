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
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.threads import start_thread, tell_unexpected
from holdfast.workers.lines import LineCutter, Tail, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.workers.sinks import Console, LogFile, SharedFile

NAME = "holdfast-pump"
READ_BYTES = 64 * 1024
#: The most that is read from one stream when it is settled: a full pipe, and no endless flood of a
#: grandchild.
SETTLE_BYTES_MAX = 1024 * 1024
#: How long the thread rests after a turn that went wrong, and how many mistakes of one process are told.
TROUBLE_PAUSE_S = 0.1
TROUBLES_TOLD_MAX = 10


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
        self._only_drained = False

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
        if data and not self._only_drained:
            self._hand("file", data)
            self._emit(self._cutter.feed(data))
        return len(data)

    def flush(self) -> None:
        """Pass on the line that has no end yet."""
        if not self._only_drained:
            self._emit(self._cutter.flush())

    def only_drain(self) -> None:
        """Read on and keep nothing, so that the worker is not held up by a mistake of ours."""
        self._only_drained = True

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
        self._hand("console", b"".join(prefix + line + b"\n" for line in lines))

    def _hand(self, name: Literal["file", "filtered", "console"], data: bytes) -> None:
        """Give one sink its share; one that raises costs only itself."""
        sink = getattr(self._sinks, name)
        if sink is None:
            return
        try:
            sink.write(data)
        except Exception as error:  # noqa: BLE001 - a console of the program's own may raise anything
            setattr(self._sinks, name, None)
            tell_unexpected(NAME, error, f"one stream goes on without its {name}")


class Pump:
    """Owns the thread; captures are handed over to it and come to their end through it.

    The thread cannot die of a mistake: an unexpected exception is told with its traceback, the stream that it came from
    is from then on only read, and the thread goes on, so that no worker ever waits in front of a full pipe.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._captures: dict[int, Capture] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # held to ring the bell and to close it: its number may be given to another file
        self._closing = False
        self._closed = False
        self._troubles = 0
        self._begin()

    def _begin(self, _: BaseException | None = None) -> None:
        self._thread = start_thread(self._run, NAME, on_death=self._begin)

    def attach(self, capture: Capture) -> None:
        """Start carrying this stream; raises OSError where the kernel cannot watch it."""
        self._captures[capture.fd] = capture
        try:
            self._epoll.register(capture.fd, select.EPOLLIN)
        except BaseException:
            del self._captures[capture.fd]
            raise

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
                self._guarded(act, capture)
            done.set()

        if not self._ask(run):
            done.set()  # the pump is closed, and every stream with it
        return done

    def _ask(self, what: Callable[[], None]) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._asked.append(what)
            os.eventfd_write(self._bell, 1)
            return True

    # -- on the pump's own thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            if not self._guarded(self._turn):
                time.sleep(TROUBLE_PAUSE_S)  # whatever it is, it may be there again at once
        with self._lock:
            self._closed = True
            self._epoll.close()
            os.close(self._bell)
        while self._asked:
            self._guarded(self._asked.popleft())

    def _turn(self) -> None:
        for fd, _ in self._epoll.poll():
            if fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            elif (capture := self._captures.get(fd)) is not None:
                self._guarded(self._carry, capture)
        while self._asked:
            self._guarded(self._asked.popleft())

    def _guarded(self, act: Callable[..., None], *captures: Capture) -> bool:
        """Do something, with a stream or none; an exception that it did not expect is told, and says False."""
        try:
            act(*captures)
        except Exception as error:  # noqa: BLE001 - the edge of the thread
            for capture in captures:
                capture.only_drain()
            self._troubles += 1
            if self._troubles <= TROUBLES_TOLD_MAX:
                tell_unexpected(NAME, error, "the output of one stream is dropped" if captures else "")
            return False
        return True

    def _carry(self, capture: Capture) -> None:
        if capture.read_once() == 0:
            self._forget(capture)

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
        try:
            self._settle(capture)
        finally:
            if not capture.ended:
                self._forget(capture)

    def _forget(self, capture: Capture) -> None:
        try:
            capture.flush()
        finally:
            self._epoll.unregister(capture.fd)
            del self._captures[capture.fd]
            capture.close()

    def _close(self) -> None:
        for capture in list(self._captures.values()):
            self._guarded(self._finish, capture)
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
