"""`start_processes` and its contexts, as programs written for TorchElastic use them: thin faces on a gang.

What differs is only better: `wait` reacts at once whatever `period` says, grandchildren are ended too, and
nobody's signal handlers are touched (the agent that wants `SignalError` raises it from handlers of its
own).
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.failures import ProcessFailure
from holdfast.workers.driver import GRACE_S, Gang
from holdfast.workers.numa import NumaOptions, bind
from holdfast.workers.plan import Entry, Function, Program, WorkerPlan
from holdfast.workers.wiring import LogOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.workers.logs import LogsSpecs


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
        _check_ranks(args, envs)
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.nprocs = len(args)
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
        """Start every process."""
        self._start()

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
            return self._poll()
        until = None if timeout < 0 else time.monotonic() + timeout
        while True:
            result = self._poll()
            if result is not None or (until is not None and time.monotonic() >= until):
                return result
            self._wait_event(period if until is None else min(period, until - time.monotonic()))

    def _wait_event(self, timeout: float) -> None:
        """Wait until `_poll` may have something new, for at most `timeout` seconds."""
        time.sleep(max(0.0, timeout))

    def close(self, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
        """End what still runs: `death_sig` (SIGTERM), then SIGKILL after `timeout` seconds."""
        self._close(death_sig=death_sig or signal.SIGTERM, timeout=timeout)


class _GangContext(PContext):
    """What both contexts share: a gang, and how its ends become a result."""

    def __init__(self, *args: Any, numa_options: NumaOptions | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._numa_options = numa_options
        self._gang: Gang | None = None
        self._result: RunProcsResult | None = None

    @abstractmethod
    def _entry(self, local_rank: int) -> Entry:
        """What this rank runs."""

    @abstractmethod
    def _return_value(self, gang: Gang, local_rank: int) -> Any:
        """What this rank returned."""

    def _start(self) -> None:
        if self._gang is not None:
            raise UsageError("these processes have been started already; make a new context")
        cpus = bind(self._numa_options, self.nprocs)
        plans = [
            WorkerPlan(rank, self._entry(rank), self.envs[rank], cpus=cpus.get(rank)) for rank in sorted(self.args)
        ]
        self._gang = Gang(plans, self._dest, self._options)
        self._gang.start()

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
            failed = [e for e in gang.exits().values() if e.failed]
            failed = [e for e in failed if not e.signalled_by_us] or failed  # whom we ended is no news
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
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            numa_options=numa_options,
        )
        self.start_method = start_method

    def _entry(self, local_rank: int) -> Entry:
        assert callable(self.entrypoint)
        return Function(self.entrypoint, self.args[local_rank], self.start_method)

    def _return_value(self, gang: Gang, local_rank: int) -> Any:
        return gang.return_value(local_rank)


class SubprocessContext(_GangContext):
    """Runs a program in every process."""

    def __init__(
        self,
        name: str,
        entrypoint: str,
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
            numa_options=numa_options,
        )

    def _entry(self, local_rank: int) -> Entry:
        return Program((str(self.entrypoint), *map(str, self.args[local_rank])))

    def _return_value(self, gang: Gang, local_rank: int) -> Any:  # noqa: ARG002 - programs return nothing
        return None


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


def _check_ranks(args: dict[int, tuple[Any, ...]], envs: dict[int, dict[str, str]]) -> None:
    if not args:
        raise UsageError("args names no local rank; there is nothing to start")
    expected = set(range(len(args)))
    for what, given in (("args", set(args)), ("envs", set(envs))):
        if given != expected:
            raise UsageError(f"{what} has the local ranks {sorted(given)}, expected {sorted(expected)}")
