"""The starter: one thread that starts every worker, because a worker dies with the thread that started it.

A parent-death signal fires when the *thread* that forked the worker ends, so workers must not be started from
a thread that may end before the agent does. This one lives as long as the process.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import InternalError, UnavailableError, UsageError
from holdfast.workers import linux
from holdfast.workers.plan import Module, Program, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

#: How often a caller looks whether the thread still lives.
LOOK_S = 1.0

BOOTSTRAP = str(Path(__file__).with_name("bootstrap.py"))


class Starter:
    """Runs what it is given on its own thread, one after the other."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-starter", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread and return its result, or raise what it raised.

        If the caller is interrupted meanwhile (Ctrl-C), the function is still waited for: what it has started
        must be known before anything is cleaned up. Raises `InternalError` if the thread has died.
        """
        future: Future[T] = Future()
        self._work.put((function, future))
        try:
            self._wait_done(future)
        except BaseException:
            self._wait_done(future)
            raise
        if not future.done():
            raise InternalError(f"the thread {self._thread.name} has died; no worker can be started")
        return future.result()

    def _wait_done(self, future: Future[T]) -> None:
        """Wait for the function's end, or for that of the thread that was to call it."""
        while not wait_futures([future], LOOK_S).done and self._thread.is_alive():
            pass

    def _run(self) -> None:
        while True:
            function, future = self._work.get()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)
            del function, future


_guard = threading.Lock()
_starters: dict[int, Starter] = {}


def starter() -> Starter:
    """Return this process's starter, beginning its thread on first use; a forked child gets its own."""
    pid = os.getpid()
    with _guard:
        if pid not in _starters:
            _starters.clear()
            _starters[pid] = Starter()
        return _starters[pid]


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def command_line(entry: Program | Script | Module, python: str | None = None) -> list[str]:
    """Return the command to execute: Python runs unbuffered and through the bootstrap, a program as it is."""
    if isinstance(entry, Program):
        return list(entry.argv)
    head = [python or os.environ.get("PYTHON_EXEC") or sys.executable, "-u", BOOTSTRAP]
    if isinstance(entry, Module):
        return [*head, "module", entry.name, *entry.args]
    return [*head, "script", entry.path, *entry.args]


def start_exec(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    cpus: frozenset[int] | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Start a program in a session of its own that dies with this process; returns its pid.

    The caller owns the pid and must wait for it. Stdin is inherited unless a path is given, so that a
    debugger in one worker works.
    """
    agent = os.getpid()

    # This runs between fork and exec, where all other threads are gone: it may not import, log or lock.
    def prepare() -> None:
        linux.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(1)
        if cpus:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cpus)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=prepare,
            pass_fds=pass_fds,
        )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        hint = "; chmod +x makes it a program" if isinstance(error, PermissionError) else ""
        raise UsageError(f"cannot start {argv[0]!r}: {error.strerror}: {error.filename}{hint}") from error
    except OSError as error:
        raise UnavailableError(f"cannot start {argv[0]!r}: {error}") from error
    process.returncode = 0  # from here on the pid is ours: Popen must neither wait for it nor warn about it
    return process.pid
