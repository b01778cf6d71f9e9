"""The pump: one thread that reads every stream of workers from its pipe and writes it to its sinks; see `streams`.

How a stream is read: the worker holds the writing end of a pipe, the pump sleeps in epoll on all reading
ends and takes at most `READ_BYTES` from each in turn. So a worker that floods fills its own pipe and is slowed
down by the kernel; the others get their turn, and the agent holds one unfinished line and a short tail per
stream, no more. A line that has no end after `PART_S` seconds is shown without it.

How a stream ends: when its last writer closes it, or when the agent says so. A grandchild that outlives the
worker and keeps the pipe open blocks nothing: `settle` reads what is there now and shows the last,
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
from typing import TYPE_CHECKING

from holdfast.threads import start_thread, tell_unexpected
from holdfast.workers.streams import PUMP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.workers.streams import Stream

#: The most that is read from one stream when it is settled: a full pipe, and no endless flood of a
#: grandchild.
SETTLE_BYTES_MAX = 1024 * 1024
#: How long a line may take to end before it is shown without its end. Under `python -u` a `print` is several writes,
#: and a worker may lose its turn on a busy machine between two of them.
PART_S = 0.25
#: How long the thread rests after a turn that failed, and how many mistakes of one process are reported.
TROUBLE_PAUSE_S = 0.1
TROUBLES_TOLD_MAX = 10


class Pump:
    """Owns the thread; streams are attached to it and end through it.

    The thread cannot die of a mistake: an unexpected exception is reported with its traceback, the stream it came from
    is from then on only drained, and the thread continues, so that no worker ever waits in front of a full pipe.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._streams: dict[int, Stream] = {}
        self._due: dict[Stream, float] = {}  # when the unfinished line of a stream is to be shown
        self._asked: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()  # held to ring the bell and to close it: its number may be given to another file
        self._closing = False
        self._closed = False
        self._troubles = 0
        self._begin()

    def _begin(self, _: BaseException | None = None) -> None:
        self._thread = start_thread(self._run, PUMP, on_death=self._begin)

    def attach(self, stream: Stream) -> None:
        """Start reading this stream; raises OSError if the kernel cannot watch it."""
        self._streams[stream.fd] = stream
        try:
            self._epoll.register(stream.fd, select.EPOLLIN)
        except BaseException:
            del self._streams[stream.fd]
            raise

    def settle(self, streams: Iterable[Stream]) -> threading.Event:
        """Read what these streams hold now, their last unterminated lines included; the event says when."""
        return self._each(streams, self._settle)

    def finish(self, streams: Iterable[Stream]) -> threading.Event:
        """Read what these streams hold now and close them, even if a process still writes; the event says when."""
        return self._each(streams, self._finish)

    def close(self) -> None:
        """Finish every stream and end the thread; waits for it briefly, since a console may be stuck."""
        self._ask(self._close)
        self._thread.join(1.0)

    def _each(self, streams: Iterable[Stream], act: Callable[[Stream], None]) -> threading.Event:
        wanted, done = tuple(streams), threading.Event()

        def run() -> None:
            for stream in wanted:
                self._guarded(act, stream)
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
        due = min(self._due.values(), default=None)
        for fd, _ in self._epoll.poll(None if due is None else max(0.0, due - time.monotonic())):
            if fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            elif (stream := self._streams.get(fd)) is not None:
                self._guarded(self._carry, stream)
        if self._due:
            self._show_parts(time.monotonic())
        while self._asked:
            self._guarded(self._asked.popleft())

    def _guarded(self, act: Callable[..., None], *streams: Stream) -> bool:
        """Do something, with a stream or none; report an unexpected exception and return False."""
        try:
            act(*streams)
        except Exception as error:  # noqa: BLE001 - the edge of the thread
            for stream in streams:
                stream.only_drain()
            self._troubles += 1
            if self._troubles <= TROUBLES_TOLD_MAX:
                tell_unexpected(PUMP, error, "the output of one stream is dropped" if streams else "")
            return False
        return True

    def _carry(self, stream: Stream) -> None:
        if stream.read_once() == 0:
            self._forget(stream)
        elif not stream.waits:
            self._due.pop(stream, None)
        elif stream not in self._due:
            self._due[stream] = time.monotonic() + PART_S

    def _show_parts(self, now: float) -> None:
        for stream in [stream for stream, due in self._due.items() if due <= now]:
            del self._due[stream]
            self._guarded(_show_part, stream)

    def _settle(self, stream: Stream) -> None:
        if stream.ended:
            return
        carried = 0
        while carried < SETTLE_BYTES_MAX:
            size = stream.read_once()
            if size == 0:
                self._forget(stream)
                return
            if size < 0:
                break
            carried += size
        self._due.pop(stream, None)
        stream.flush()

    def _finish(self, stream: Stream) -> None:
        try:
            self._settle(stream)
        finally:
            if not stream.ended:
                self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        try:
            stream.flush()
        finally:
            self._due.pop(stream, None)
            self._epoll.unregister(stream.fd)
            del self._streams[stream.fd]
            stream.close()

    def _close(self) -> None:
        for stream in list(self._streams.values()):
            self._guarded(self._finish, stream)
        self._closing = True


def _show_part(stream: Stream) -> None:
    stream.show_part()


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


def wait_output(timeout: float | None = None) -> None:
    """Wait until all output of ended workers has been read.

    Wait without a limit only at the end of a process that can be interrupted: a pager stops reading for hours.
    """
    if (pump := _pumps.get(os.getpid())) is not None:
        pump.settle(()).wait(timeout)


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()  # the parent may have held it at the moment of the fork


os.register_at_fork(after_in_child=_after_fork)
