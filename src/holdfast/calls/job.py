"""A submitted call: its results by rank, its exception, its output."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.calls.folder import CallFolder, Outcome
from holdfast.errors import (
    JobCancelledError,
    JobTimeoutError,
    RemoteTracebackError,
    UnknownAppError,
    UsageError,
    WorkerFailedError,
)
from holdfast.quantities import to_seconds
from holdfast.runner.api import get_runner
from holdfast.specs import AppState, AppStatus

T = TypeVar("T")

#: The variable by which a job says where its call is kept.
FOLDER_VARIABLE = "HOLDFAST_CALL_FOLDER"
#: How often an awaited job is looked at: often at first, then less and less.
LOOK_S, LOOK_S_MAX, LOOK_GROWTH = 0.05, 1.0, 1.3


class Job(Generic[T]):
    """A function that runs as a job; made by `holdfast.submit`, or by `Job.open` from a handle.

    It can be awaited, which returns what `result` does.
    """

    def __init__(self, handle: str, folder: CallFolder) -> None:
        self.handle = handle
        self._folder = folder
        self._ended: AppStatus | None = None

    @classmethod
    def open(cls, handle: str) -> Job[Any]:
        """Return the job of a handle, as from another session; raises `UsageError` if that job runs no function."""
        with get_runner() as runner:
            app = runner.describe(handle)
        if app is None:
            raise UnknownAppError(handle)
        folder = next((role.env[FOLDER_VARIABLE] for role in app.roles if FOLDER_VARIABLE in role.env), "")
        if not folder:
            raise UsageError(f"{handle} runs no function: it was not made by holdfast.submit")
        return cls(handle, CallFolder(Path(folder)))

    @property
    def id(self) -> str:
        """The job's id, by which every command knows it."""
        return self.handle.rpartition("/")[2]

    # -- how it is doing -----------------------------------------------------------------------------------------------

    def status(self) -> AppStatus:
        """Return how the job is doing, replica by replica."""
        if self._ended is not None:
            return self._ended
        with get_runner() as runner:
            found = runner.status(self.handle)
        return self._keep(found)

    def done(self) -> bool:
        """Whether it has ended, in any way."""
        return self.status().is_terminal()

    def wait(self, timeout: float | timedelta | None = None) -> AppStatus:
        """Wait until the job has ended; raises `JobTimeoutError`, which is a `TimeoutError`, after `timeout`."""
        if self._ended is not None:
            return self._ended
        with get_runner() as runner:
            found = runner.wait(self.handle, timeout=timeout)
        return self._keep(found)

    def _keep(self, status: AppStatus | None) -> AppStatus:
        if status is None:
            raise UnknownAppError(self.handle)
        if status.is_terminal():
            self._ended = status
        return status

    # -- what came of it -----------------------------------------------------------------------------------------------

    def result(self, timeout: float | timedelta | None = None) -> T:
        """Wait for the end and return what rank 0 returned.

        Raises what the function raised, with the remote traceback as its cause; `WorkerFailedError` if a worker died
        without an exception, `JobCancelledError` if the job was cancelled, `JobTimeoutError` after `timeout`.
        """
        return self.results(timeout)[0]

    def results(self, timeout: float | timedelta | None = None) -> dict[int, T]:
        """Wait for the end and return what each rank returned; raises as `result` does."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        outcomes = self._folder.outcomes()
        missing = set(range(outcomes[0].world_size if outcomes else 1)) - set(outcomes)
        if missing:
            where = self._folder.path
            raise WorkerFailedError(
                f"the results of ranks {sorted(missing)} are not in {where}: is it a shared folder?"
            )
        return {rank: outcome.value for rank, outcome in outcomes.items()}

    def exception(self, timeout: float | timedelta | None = None) -> BaseException | None:
        """Wait for the end and return what `result` would raise; None if the function returned on every rank."""
        status = self.wait(timeout)
        outcomes = self._folder.outcomes()
        failed = sorted((each for each in outcomes.values() if each.failed), key=lambda each: each.time)
        if status.state is AppState.CANCELLED:
            return JobCancelledError(f"{self.handle} was cancelled")
        if failed and (status.state is not AppState.SUCCEEDED or len(failed) == len(outcomes)):
            return _error_of(failed[0])
        if status.state is not AppState.SUCCEEDED:
            said = status.format().strip()
            return WorkerFailedError(
                f"{self.handle} is {status.state.name}: {status.msg or said}", (), status.exit_code
            )
        return _error_of(failed[0]) if failed else None

    def __await__(self) -> Generator[Any, None, T]:
        return self._result().__await__()

    async def _result(self) -> T:
        """Wait without blocking the loop; it can be cancelled, and the job goes on."""
        import asyncio  # here, because most programs never await a job

        pause = LOOK_S
        while not await asyncio.to_thread(self.done):
            await asyncio.sleep(pause)
            pause = min(pause * LOOK_GROWTH, LOOK_S_MAX)
        return await asyncio.to_thread(self.result)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def logs(self, *, follow: bool = False) -> Iterator[str]:
        """Yield the lines that the job has written, without their ends; with `follow` until it has ended."""
        with get_runner() as runner:
            status = runner.status(self.handle)
            if status is None:
                raise UnknownAppError(self.handle)
            for replica in status.replicas():
                for line in runner.log_lines(self.handle, replica.role, replica.id, should_tail=follow):
                    yield line.rstrip("\n")

    def cancel(self, timeout: float | timedelta = 60.0) -> bool:
        """Cancel the job and wait until its processes have ended; returns whether it was cancelled in time."""
        seconds = to_seconds(timeout)
        with get_runner() as runner:
            runner.cancel(self.handle)
        try:
            return self.wait(seconds).state is AppState.CANCELLED
        except JobTimeoutError:
            return False

    def delete(self) -> None:
        """Delete the job with its logs and results; one that still runs is cancelled first."""
        with get_runner() as runner:
            runner.delete(self.handle)
        self._folder.remove()

    def __repr__(self) -> str:
        state = f": {self._ended.state.name}" if self._ended is not None else ""  # asking may take a while on a cluster
        return f"<holdfast.Job {self.handle}{state}>"


def _error_of(outcome: Outcome) -> BaseException:
    """Return a rank's exception as it was there, with its traceback as the cause."""
    told = f"rank {outcome.rank}:\n{outcome.traceback}"
    error = outcome.error
    if error is None:
        lines = outcome.traceback.strip().splitlines() or ["it failed"]
        error = WorkerFailedError(f"rank {outcome.rank}: {lines[-1]}")
    error.__cause__ = RemoteTracebackError(told)
    return error
