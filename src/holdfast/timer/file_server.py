"""The watchdog's side of the pipe: reads the requests of many processes, and kills those whose timers expire.

A thread waits for the pipe and for the next deadline. It lets requests gather for a moment, because waking up for each
of them would cost the workers more than writing them. Before it decides it reads all that was in the pipe when it woke
up, so a release that was sent in time counts however late this process is. Garbage in the pipe is counted and skipped.
Unlike TorchElastic's server it never kills its own process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.failures.failure import signal_name
from holdfast.machine import Tick
from holdfast.timer.machine import TimerMachine, TimerReleased, TimerSet, TimersExpired, WorkerForgotten
from holdfast.timer.requests import FileTimerRequest, RequestReader
from holdfast.workers.strays import Stat, read_stat
from holdfast.workers.sweep import signal_process

READ_BYTES = 64 * 1024
#: How much the pipe should hold; the kernel may give less.
PIPE_BYTES = 1024 * 1024
#: How long requests gather before they are read together.
GATHER_S = 0.02
#: How long the thread pauses after an unexpected exception.
STUMBLE_S = 1.0
#: How many processes are remembered; with one more all are forgotten.
KNOWN_MAX = 10_000
#: How far up a process's parents are followed.
ANCESTORS_MAX = 64

LogEvent = Callable[[str, FileTimerRequest | None], None]


class FileTimerServer:
    """Watches the timers that `FileTimerClient`s, TorchElastic's included, set through a named pipe.

    `log_event` is called with `timer expired` and `kill worker process` and the request. `admits` decides whose
    timers count, by default those of this process's descendants; `on_expired` replaces killing the worker.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: LogEvent | None = None,
        *,
        admits: Callable[[int], bool] | None = None,
        on_expired: Callable[[TimersExpired], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self._file_path = file_path
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event or (lambda _name, _request: None)
        self._admits = admits or _is_ours
        self._on_expired = on_expired or self._end_worker
        self._machine = TimerMachine()
        self._lock = threading.Lock()  # API methods may be called while the thread runs
        self._reader = RequestReader()
        self._known: dict[int, Stat] = {}
        self._last_progress = time.monotonic()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pipe = _make_pipe(file_path)
        with contextlib.suppress(OSError):  # this user's share of pipe memory is used up
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pipe_bytes = fcntl.fcntl(self._pipe, fcntl.F_GETPIPE_SZ)

    # -- the thread --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to watch, in a thread of its own."""
        self._last_progress = time.monotonic()
        self._thread = threading.Thread(target=self._watchdog_loop, name="holdfast timers", daemon=self._daemon)
        self._thread.start()
        self._log_event("watchdog started", None)

    def stop(self) -> None:
        """Stop watching and remove the pipe; may be called again."""
        if self._pipe < 0:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._max_interval)
        if thread is None or not thread.is_alive():
            os.close(self._pipe)
            os.close(self._wake)
        self._pipe = -1
        with contextlib.suppress(OSError):
            Path(self._file_path).unlink()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Read requests and check timers once, in place of the thread."""
        self._run_watchdog()

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Whether this process exists and has not ended."""
        found = read_stat(pid)
        return found is not None and found.state not in "ZX"

    def get_last_progress_time(self) -> int:
        """Return when the thread last made progress, in whole seconds of the wall clock; now, if it is not started."""
        idle_s = time.monotonic() - self._last_progress if self._thread is not None else 0.0
        return int(time.time() - idle_s)

    @property
    def refused(self) -> int:
        """How many requests could not be read, or came from processes that are not ours."""
        return self._reader.refused

    def _watchdog_loop(self) -> None:
        all_news, told = select.poll(), select.poll()
        all_news.register(self._pipe, select.POLLIN)
        all_news.register(self._wake, select.POLLIN)
        told.register(self._wake, select.POLLIN)
        while not self._stopping:
            try:
                told.poll(min(GATHER_S, self._wait_s()) * 1000)
                all_news.poll(self._wait_s() * 1000)
                self._run_watchdog()
            except Exception as error:  # noqa: BLE001 - without the thread no timer would ever expire
                facts.unexpected("the timer watchdog", error, "it goes on watching")
                told.poll(STUMBLE_S * 1000)  # an exception that repeats must not keep a processor busy
            self._last_progress = time.monotonic()

    def _wait_s(self) -> float:
        with self._lock:
            wakeup = self._machine.wakeup()
        if wakeup is None:
            return self._max_interval
        return min(max(wakeup - time.monotonic(), 0.0), self._max_interval)

    def _run_watchdog(self) -> None:
        """Read requests, then check timers."""
        self.register_timers(self._read_requests(self._pipe))
        with self._lock:
            expired = self._machine.handle(Tick(), time.monotonic())
        for each in expired:
            try:
                self._on_expired(each)
            except Exception as error:  # noqa: BLE001 - a user's handler must not end the watch
                facts.unexpected(f"handling an expired timer of {each.worker}", error, "the watch goes on")
            self._last_progress = time.monotonic()  # ending a worker may take its time

    def _read_requests(self, pipe: int) -> list[FileTimerRequest]:
        """Read what is in the pipe now: a writer that never stops must not keep us from checking timers."""
        requests: list[FileTimerRequest] = []
        read = 0
        with contextlib.suppress(BlockingIOError):
            while read < self._pipe_bytes and (data := os.read(pipe, READ_BYTES)):
                read += len(data)
                requests += self._reader.feed(data)
        return requests

    # -- TorchElastic's methods --------------------------------------------------------------------------------

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Add requests; a negative expiration time releases a timer."""
        for request in timer_requests:
            pid, scope = request.worker_pid, request.scope_id
            if request.expiration_time < 0:
                self._handle(TimerReleased(pid, scope))
            elif self._recognise(pid):
                # From here on the monotonic clock counts: setting the wall clock kills no worker.
                after = request.after if request.after is not None else request.expiration_time - time.time()
                self._handle(TimerSet(pid, scope, time.monotonic() + after, request.signal, after))
            else:
                self._reader.refused += 1

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forget all timers of these processes."""
        for pid in worker_pids:
            self._known.pop(pid, None)
            self._handle(WorkerForgotten(pid))

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers of each process that expire at `deadline` or before, on the wall clock."""
        offset = time.time() - time.monotonic()
        with self._lock:
            expired = self._machine.expired(deadline - offset)
        return {_pid(worker): [_request(timer, offset) for timer in timers] for worker, timers in expired.items()}

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        """Send a signal to exactly the process that set the timers; return whether it was there."""
        known = self._known.get(worker_pid)
        if known is None or worker_pid == os.getpid():
            return False
        signal_process(known, signal)
        return True

    # -- small things ------------------------------------------------------------------------------------------

    def _handle(self, event: Any) -> None:
        with self._lock:
            self._machine.handle(event, time.monotonic())

    def _recognise(self, pid: int) -> bool:
        """Whether this process's timers count; remembers its identity, since its pid may be reused."""
        if pid in self._known:
            return True
        found = read_stat(pid)
        if found is None or not self._admits(pid):
            return False
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[pid] = found
        return True

    def _end_worker(self, expired: TimersExpired) -> None:
        """Send the signal of the earliest timer that has one."""
        offset = time.time() - time.monotonic()
        pid = _pid(expired.worker)
        for timer in expired.timers:
            request = _request(timer, offset)
            self._log_event("timer expired", request)
            if timer.signal > 0:
                facts.warn(
                    "timer_expired",
                    f"process {pid}: timer '{timer.scope}' of {timer.seconds:.3g} s expired; "
                    f"sending {signal_name(-timer.signal)}",
                )
                if self._reap_worker(pid, timer.signal):
                    self._log_event("kill worker process", request)
                return


def _make_pipe(path: str) -> int:
    """Make the named pipe for this user alone and open it; an old pipe is replaced."""
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISFIFO(Path(path).lstat().st_mode):
                raise UsageError(f"'{path}' is in the way of the timers' pipe; name another file")
            if is_watched(path):
                raise UsageError(f"another watchdog reads the timers' pipe '{path}'; name another file")
            Path(path).unlink()
        os.mkfifo(path, 0o600)
        # Open for writing too: the pipe then never ends, however many writers come and go.
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(pipe)
        if not stat.S_ISFIFO(found.st_mode) or found.st_uid != os.geteuid():
            os.close(pipe)
            raise UsageError(f"another user has replaced the timers' pipe '{path}'; name a file in a folder of yours")
        return pipe
    except OSError as error:
        raise UsageError(f"cannot make the timers' pipe '{path}': {error.strerror}") from error


def is_watched(path: str) -> bool:
    """Whether there is a pipe that has a reader."""
    try:
        if not stat.S_ISFIFO(Path(path).lstat().st_mode):
            return False
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False  # there is none, or it has no reader
    return True


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or descends from it."""
    for _ in range(ANCESTORS_MAX):
        if pid == os.getpid():
            return True
        found = read_stat(pid)
        if found is None or found.ppid <= 1:
            return False
        pid = found.ppid
    return False


def _request(timer: TimerSet, offset: float) -> FileTimerRequest:
    return FileTimerRequest(_pid(timer.worker), timer.scope, timer.deadline + offset, timer.signal)


def _pid(worker: Any) -> int:
    pid: int = worker
    return pid
