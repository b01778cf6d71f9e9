"""A worker's side of the agent's watchdog: a timer is set by one small write to a pipe.

Training must never wait for the watchdog. So the pipe stays open and setting a timer never blocks: if the watchdog lags
so far behind that the pipe is half full, new timers are not set, and the other half stays free for releases. A release
must arrive, or the worker would be killed for nothing: if even that half is full, it waits `RELEASE_WAIT_S` once, and
is then sent with the next request.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal as signals
import struct
import termios
import time
from json.encoder import encode_basestring_ascii

from holdfast.errors import UsageError
from holdfast.timer.api import TimerClient
from holdfast.timer.requests import REQUEST_BYTES_MAX, REQUEST_VERSION

RELEASE_WAIT_S = 1.0
#: How long the first request waits for a watchdog that is about to start.
CONNECT_WAIT_S = 1.0
CONNECT_LOOK_S = 0.05
#: How many scopes have their encoded requests cached.
SCOPES_MAX = 256
#: Roughly how many bytes all workers together may write between two checks of how full the pipe is.
LOOK_BYTES = 16 * 1024

_log = logging.getLogger("holdfast")
_NOTHING = bytes(4)


class FileTimerClient(TimerClient):
    """Sets this process's timers through the pipe of a `FileTimerServer`.

    An expired timer sends `signal` to this process before SIGKILL; with 0 or less it is only reported.
    """

    _fd = -1
    #: Kept here because `os` is gone from this module when the interpreter ends before the client does.
    _close_fd = staticmethod(os.close)

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        self._file_path = file_path
        self.signal = signal
        #: How full the pipe may be for a timer to be set; after how many timers to check, and how many are left.
        self._room = 0
        self._look_every = self._look_in = 1
        #: By scope: the part of a request before its time, and a whole release; and the process that they belong to.
        self._words: dict[str, tuple[bytes, bytes]] = {}
        self._pid = 0
        #: Releases that did not fit into the pipe, by scope.
        self._unsent: dict[str, bytes] = {}
        self._told = False

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Set a timer; never waits for the watchdog. Raises `BrokenPipeError` if there is none."""
        head, _ = self._words_of(scope_id)
        after = expiration_time - time.time()
        line = b'%b%.6f, "signal": %d, "after": %.6f}\n' % (head, expiration_time, self.signal, after)
        if len(line) > REQUEST_BYTES_MAX:
            raise UsageError(f"the scope of a timer has {len(scope_id)} characters; give it a shorter name")
        if self._fd < 0:
            self._connect()
        self._look_in -= 1
        if (self._look_in <= 0 or self._unsent) and not self._has_room():
            self._tell_once()
            return
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            self._look_in = 0
            self._tell_once()
        except BrokenPipeError:
            self.close()
            self._connect()
            os.write(self._fd, line)

    def release(self, scope_id: str) -> None:
        """Release a timer; does nothing if the watchdog is gone."""
        if self._fd < 0:
            return
        _, line = self._words_of(scope_id)
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            if not self._unsent:  # one wait is enough: a watchdog that did not read then does not read now
                _wait_writable(self._fd, RELEASE_WAIT_S)
            self._unsent[scope_id] = line
            self._flush()
        except BrokenPipeError:
            self._unsent.clear()

    def close(self) -> None:
        """Close the pipe; the next timer opens it again."""
        if self._fd >= 0:
            self._close_fd(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def _words_of(self, scope: str) -> tuple[bytes, bytes]:
        if self._pid != _pid:  # the first time, or in a child that was forked
            self._pid = _pid
            self._words.clear()
        words = self._words.get(scope)
        if words is None:
            if len(self._words) >= SCOPES_MAX:
                self._words.clear()
            begin = f'{{"version": {REQUEST_VERSION}, "pid": {_pid}, "scope_id": {encode_basestring_ascii(scope)}, '
            head = f'{begin}"expiration_time": '.encode()
            words = self._words[scope] = head, head + b'-1, "signal": 0}\n'
        return words

    def _has_room(self) -> bool:
        """Send unsent releases; return whether enough of the pipe is free for another timer."""
        self._flush()
        backlog: int = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, _NOTHING))[0]
        if self._unsent or backlog > self._room:
            return False
        self._look_in = self._look_every
        return True

    def _flush(self) -> None:
        """Send unsent releases, as far as they fit."""
        for scope, line in tuple(self._unsent.items()):
            try:
                os.write(self._fd, line)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._unsent.clear()
                return
            self._unsent.pop(scope, None)

    def _connect(self) -> None:
        """Open the pipe, waiting a moment for a watchdog that is still starting."""
        until = time.monotonic() + CONNECT_WAIT_S
        while True:
            try:
                self._fd = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                break
            except OSError as error:
                # ENXIO: the pipe exists, but has no reader.
                if error.errno not in (errno.ENXIO, errno.ENOENT) or time.monotonic() >= until:
                    raise BrokenPipeError(f"no watchdog listens at {self._file_path}: {error}") from error
            select.poll().poll(CONNECT_LOOK_S * 1000)
        self._room = fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ) // 2
        self._look_every = max(1, self._room // LOOK_BYTES)

    def _tell_once(self) -> None:
        if not self._told:
            self._told = True
            _log.warning("the watchdog does not keep up; timers are not set until it does")


def _wait_writable(fd: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll(timeout_s * 1000)


_pid = os.getpid()


def _after_fork() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)
