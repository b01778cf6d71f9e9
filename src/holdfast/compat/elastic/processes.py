"""TorchElastic's `multiprocessing.api`: `start_processes` and its contexts, as adapters around a gang.

Two things differ on purpose: `wait` returns as soon as a process ends, whatever `period` says, and the processes that
workers have started are ended too.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.compat.elastic.redirects import get_std_cm, redirect_stderr, redirect_stdout
from holdfast.compat.elastic.subprocess_handler import SubprocessHandler, get_subprocess_handler
from holdfast.compat.elastic.tail_log import TailLog
from holdfast.compat.errors import SignalException
from holdfast.errors import UsageError
from holdfast.failures import ProcessFailure, record
from holdfast.workers.driver import GRACE_S, Gang
from holdfast.workers.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
from holdfast.workers.numa import NumaOptions, bind
from holdfast.workers.plan import Entry, Function, Program, WorkerExited, WorkerPlan
from holdfast.workers.std import Std, to_map
from holdfast.workers.wiring import LogOptions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "NumaOptions",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "SubprocessHandler",
    "TailLog",
    "get_std_cm",
    "get_subprocess_handler",
    "record",
    "redirect_stderr",
    "redirect_stdout",
    "start_processes",
    "to_map",
]

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
SIGNALS_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


@dataclass
class RunProcsResult:
    """How a finished set of processes went, by local rank."""

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether any process failed."""
        return bool(self.failures)


class PContext(ABC):
    """A set of processes that run the same thing with different arguments; `start` once, then `wait`."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        if not args:
            raise UsageError("args names no local rank; there is nothing to start")
        self.nprocs = len(args)
        _validate_full_rank(args, self.nprocs, "args")
        _validate_full_rank(envs, self.nprocs, "envs")
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        dest = logs_specs.reify(envs)
        self.stdouts, self.stderrs = dest.stdouts, dest.stderrs
        self.error_files = dest.error_files
        self._dest = dest
        self._options = LogOptions(
            prefixes=log_line_prefixes or {rank: f"[{name}{rank}]:" for rank in args},
            stdout_filters=duplicate_stdout_filters or (),
            stderr_filters=duplicate_stderr_filters or (),
        )

    def start(self) -> None:
        """Start every process; in the main thread, signals raise `SignalException` until the context is closed."""
        _signals.enter(self)
        try:
            self._start()
        except BaseException:
            _signals.leave(self)
            raise

    @abstractmethod
    def _start(self) -> None:
        """Start every process."""

    @abstractmethod
    def _poll(self) -> RunProcsResult | None:
        """Look without waiting: the result once all have ended or one has failed, None while they run."""

    @abstractmethod
    def pids(self) -> dict[int, int]:
        """The process ids by local rank."""

    @abstractmethod
    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        """End what still runs."""

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until all have ended or one has failed, which ends the others; None after the timeout.

        0 looks without waiting, a negative timeout waits for ever.
        """
        if timeout == 0:
            return self._look()
        until = None if timeout < 0 else time.monotonic() + timeout
        while True:
            result = self._look()
            if result is not None or (until is not None and time.monotonic() >= until):
                return result
            self._wait_event(period if until is None else min(period, until - time.monotonic()))

    def _look(self) -> RunProcsResult | None:
        result = self._poll()
        if result is not None:
            _signals.leave(self)
        return result

    def _wait_event(self, timeout: float) -> None:
        """Wait until `_poll` may have something new, for at most `timeout` seconds."""
        time.sleep(max(0.0, timeout))

    def close(self, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        """End what still runs: `death_sig` (SIGTERM), then SIGKILL after `timeout` seconds."""
        try:
            self._close(death_sig=death_sig or _get_default_signal(), timeout=timeout)
        finally:
            _signals.leave(self)


class _GangContext(PContext):
    """What both contexts share: a gang, and how its ends become a result."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: NumaOptions | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
        )
        self._numa_options = numa_options
        self._gang: Gang | None = None
        self._result: RunProcsResult | None = None

    @abstractmethod
    def _entry(self, local_rank: int) -> Entry:
        """What this rank runs."""

    @abstractmethod
    def _return_value(self, gang: Gang, local_rank: int) -> Any:
        """What this rank returned."""

    @abstractmethod
    def _failed(self, exits: list[WorkerExited]) -> list[WorkerExited]:
        """Which of these ends are failures; those that this context has ended itself come last."""

    def _start(self) -> None:
        if self._gang is not None:
            raise UsageError("these processes have been started already; make a new context")
        self._check_entrypoint()
        cpus = bind(self._numa_options, self.nprocs)
        plans = [
            WorkerPlan(rank, self._entry(rank), self.envs[rank], cpus=cpus.get(rank)) for rank in sorted(self.args)
        ]
        self._gang = Gang(plans, self._dest, self._options)
        try:
            self._gang.start()
        except BaseException:  # a signal, for one
            self._gang.close()
            raise

    def _check_entrypoint(self) -> None:
        """Raise if the entry point cannot be started."""

    def pids(self) -> dict[int, int]:
        """The process ids by local rank."""
        return self._started().pids()

    def _started(self) -> Gang:
        if self._gang is None:
            raise UsageError("these processes have not been started")
        return self._gang

    def _poll(self) -> RunProcsResult | None:
        if self._result is not None:
            return self._result
        gang = self._started()
        gang.take_exits()
        failed = [exited for exited in gang.exits().values() if exited.failed]
        if gang.running() and not failed:
            return None
        if failed:
            gang.stop(signal.SIGTERM, GRACE_S)
            failed = self._failed(sorted(gang.exits().values(), key=lambda exited: exited.signalled_by_us))
        failures = {
            e.local_rank: ProcessFailure(e.local_rank, e.pid, e.exit_code, gang.error_file(e.local_rank))
            for e in failed
        }
        values = {} if failed else {rank: self._return_value(gang, rank) for rank in sorted(self.args)}
        gang.close()
        self._result = RunProcsResult(values, failures, self.stdouts, self.stderrs)
        return self._result

    def _wait_event(self, timeout: float) -> None:
        self._started().wait_exits(max(0.0, timeout))

    def _close(self, death_sig: signal.Signals, timeout: int = 30) -> None:
        if self._gang is not None and self._result is None:
            self._gang.stop(death_sig, timeout)
            self._gang.close()


class MultiprocessContext(_GangContext):
    """Runs a function in every process; return values come back by local rank."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: NumaOptions | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            numa_options,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
        )
        self.start_method = start_method

    def _entry(self, local_rank: int) -> Entry:
        assert callable(self.entrypoint)
        return Function(self.entrypoint, self.args[local_rank], self.start_method)

    def _return_value(self, gang: Gang, local_rank: int) -> Any:
        return gang.return_value(local_rank)

    def _failed(self, exits: list[WorkerExited]) -> list[WorkerExited]:
        failed = [exited for exited in exits if exited.failed]
        return [exited for exited in failed if not exited.signalled_by_us] or failed


class SubprocessContext(_GangContext):
    """Runs a program in every process."""

    def _entry(self, local_rank: int) -> Entry:
        return Program((str(self.entrypoint), *map(str, self.args[local_rank])))

    def _return_value(self, gang: Gang, local_rank: int) -> Any:  # noqa: ARG002 - programs return nothing
        return None

    def _failed(self, exits: list[WorkerExited]) -> list[WorkerExited]:
        return [exited for exited in exits if exited.failed]

    def _check_entrypoint(self) -> None:
        program = str(self.entrypoint)
        if any(shutil.which(program, path=env.get("PATH")) is None for env in self.envs.values()):
            raise FileNotFoundError(2, os.strerror(2), program)


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: dict[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: NumaOptions | None = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Start one process per local rank, of a function or of a program, and return the context to wait on."""
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
        )
    else:
        context = MultiprocessContext(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            start_method=start_method,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            numa_options=numa_options,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
        )
    context.start()
    return context


# -- semi-private names that programs import -------------------------------------------------------------------------


def _validate_full_rank(d: dict[int, Any], nprocs: int, what: str) -> None:
    """Raise unless there is an entry for each local rank and for no other."""
    expected = set(range(nprocs))
    if set(d) != expected:
        raise RuntimeError(f"{what} has the local ranks {sorted(d)}, expected {sorted(expected)}")


def _wrap(
    local_rank: int,
    fn: Callable[..., Any],
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    stdout_redirects: dict[int, str],
    stderr_redirects: dict[int, str],
    ret_vals: dict[int, Any],
    queue_finished_reading_event: Any,
    numa_options: NumaOptions | None = None,
) -> None:
    """Be one worker in this process: run the function, hand over its result and wait until that has been read."""
    os.environ.update(envs[local_rank])
    cpus = bind(numa_options, local_rank + 1).get(local_rank)
    if cpus:
        os.sched_setaffinity(0, cpus)
    with (
        get_std_cm(stdout_redirects[local_rank], redirect_stdout),
        get_std_cm(stderr_redirects[local_rank], redirect_stderr),
    ):
        value = record(fn)(*args[local_rank])
    ret_vals[local_rank].put(value)
    queue_finished_reading_event.wait()


def _get_default_signal() -> signal.Signals:
    """The signal that asks a process to end."""
    return signal.SIGTERM


def _get_kill_signal() -> signal.Signals:
    """The signal that ends a process."""
    return signal.SIGKILL


def _terminate_process_handler(signum: int, frame: object) -> None:
    """Raise `SignalException` for this signal."""
    del frame
    which = signal.Signals(signum)
    raise SignalException(f"process {os.getpid()} received {which.name}", which)


class _Signals:
    """Makes signals raise `SignalException` while a context is open.

    A handler that the program has set itself stays, and so does a signal that is ignored (`nohup`): an agent of ours
    that uses these contexts keeps its own way of ending. Python lets only the main thread set handlers.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._before: dict[signal.Signals, Any] = {}

    def enter(self, context: PContext) -> None:
        """A context is about to start."""
        self._open.add(id(context))
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        for name in os.environ.get(SIGNALS_VARIABLE, SIGNALS_DEFAULT).split(","):
            which = getattr(signal, name.strip(), None)
            if isinstance(which, signal.Signals) and _is_default(signal.getsignal(which)):
                self._before[which] = signal.signal(which, _terminate_process_handler)

    def leave(self, context: PContext) -> None:
        """A context has ended; after the last one signals mean what they meant before."""
        self._open.discard(id(context))
        if self._open or threading.current_thread() is not threading.main_thread():
            return
        for which, handler in self._before.items():
            if signal.getsignal(which) is _terminate_process_handler:
                signal.signal(which, handler)
        self._before.clear()


def _is_default(handler: Any) -> bool:
    return handler in (signal.SIG_DFL, signal.default_int_handler)


_signals = _Signals()
