"""The jobs on disk: one folder each, which any shell can read while one process, the supervisor, writes it.

    <state folder>/jobs/<session>/<app id>/
        job.json        the request, written once
        state.json      how the job is doing; replaced as a whole
        secret          what replicas that meet prove to each other
        lock            locked by the supervisor for as long as it lives
        cancel, kill    there once the end was asked for
        supervisor.log  empty, unless the supervisor itself had trouble
        logs/<role>/<replica>/{stdout,stderr,combined}.log
        workspace/<role>/  the code that was shipped with the job

There is no daemon and no index, so nothing can become inconsistent:

- A job appears when a finished folder, already locked, is renamed into place, and goes by a rename. Both happen at
  once or not at all, and if several processes try, one succeeds.
- The lock shows that the supervisor is alive: the kernel releases it when the supervisor ends. The submitter takes
  it and passes it on, so that there is no moment without it.
- To cancel is to leave the file `cancel` and then to signal the supervisor, which looks for the file once it can be
  signalled: whichever comes first, the request is seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import UnavailableError, UsageError
from holdfast.filenames import file_name
from holdfast.home import make_folders
from holdfast.schedulers.local.keep import Finished, Policy, choose
from holdfast.schedulers.local.record import JobRecord, Life, LocalRequest

R = TypeVar("R")

#: Folders that are being made or taken away begin with a dot, as no job's does.
NEW, GONE = ".new-", ".gone-"
#: What a process that was killed half-way has left is cleared away after this long.
LEFTOVER_S = 3600.0
#: How often finished jobs are looked through, and how far over the limit brings it forward.
PRUNE_EVERY_S = 600.0
PRUNE_OVER = 1.25
#: How long to wait between two looks at something that cannot be waited for: at first, and at most.
LOOK_S, LOOK_MAX_S = 0.01, 0.2


class JobFolder:
    """One job's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- records -------------------------------------------------------------------------------------------------------

    def read_request(self) -> LocalRequest | None:
        """Return the request, or None if the job is gone."""
        return read_record(self.path / "job.json", LocalRequest.from_json)

    def read_state(self) -> JobRecord | None:
        """Return the last state that was written, or None if the job is gone."""
        return read_record(self.path / "state.json", JobRecord.from_json)

    def write_state(self, record: JobRecord, *, final: bool = False) -> None:
        """Replace the state; the last one is on disk before this returns."""
        write_json(self.path / "state.json", record.to_json(), sync=final)

    # -- life ----------------------------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether the job's supervisor lives."""
        try:
            lock = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def look(self) -> tuple[JobRecord, Life] | None:
        """Return the state together with what can be seen of the job, or None if it is gone."""
        alive = self.alive()  # before the state is read: see `Life`
        cancel_asked = self.cancel_asked()
        record = self.read_state()
        if record is None:
            return None
        same_boot = record.boot_id == boot_id()
        return record, Life(
            alive=alive,
            same_host=record.host == os.uname().nodename,
            same_boot=same_boot,
            booted_at="" if alive or same_boot else booted_at(),
            cancel_asked=cancel_asked,
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def cancel_asked(self) -> bool:
        """Whether the job was cancelled."""
        return (self.path / "cancel").exists()

    def kill_asked(self) -> bool:
        """Whether it was to be ended at once."""
        return (self.path / "kill").exists()

    def ask_cancel(self, *, hard: bool = False) -> None:
        """Ask the supervisor to end the job; does nothing if there is none any more."""
        if not self.alive():
            return
        try:
            if hard:
                (self.path / "kill").touch(mode=0o600)
            (self.path / "cancel").touch(mode=0o600)
        except FileNotFoundError:
            return
        with self._supervisor() as pidfd:
            if pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGTERM)

    def wait_news(self, timeout_s: float) -> None:
        """Wait until the state has changed or the supervisor has ended."""
        if not self.alive():
            time.sleep(min(timeout_s, LOOK_MAX_S))  # there is no news to come; a caller that asks again must not spin
            return
        until = time.monotonic() + timeout_s
        before, pause = self._stamp(), LOOK_S
        with self._supervisor() as pidfd:
            while self.alive() and self._stamp() == before:
                left = until - time.monotonic()
                if left <= 0:
                    return
                wait_end(pidfd, min(left, pause))
                pause = min(pause * 2, LOOK_MAX_S)

    def wait_end(self, timeout_s: float) -> None:
        """Wait until the supervisor ends or the time is over."""
        with self._supervisor() as pidfd:
            wait_end(pidfd, timeout_s)

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until the supervisor has ended; return whether that came about in time."""
        until = time.monotonic() + timeout_s
        with self._supervisor() as pidfd:
            while self.alive():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                wait_end(pidfd, min(left, LOOK_MAX_S if pidfd is not None else LOOK_S))
        return True

    def remove(self) -> bool:
        """Remove the folder; False if another process did."""
        gone = self.path.with_name(f"{GONE}{os.getpid()}-{time.monotonic_ns()}")
        try:
            self.path.rename(gone)
        except FileNotFoundError:
            return False
        clear(gone)
        return True

    def size(self) -> int:
        """Count the bytes that the folder holds; a shipped file that others have too costs nothing."""
        found = [(Path(folder) / name).lstat() for folder, _, names in os.walk(self.path) for name in names]
        return sum(each.st_size for each in found if each.st_nlink == 1)

    @contextlib.contextmanager
    def _supervisor(self) -> Iterator[int | None]:
        """Open the supervisor's pidfd: exactly that process, never one that has got its pid meanwhile."""
        pidfd = None
        with contextlib.suppress(OSError, UsageError):
            record = self.read_state()
            found = record.supervisor if record is not None else None
            if found is not None:
                pidfd = os.pidfd_open(found.pid)
                # If that process is the one that was written down, then it was so when the descriptor was opened.
                if (start_of(found.pid), boot_id()) != (found.start, found.boot_id):
                    os.close(pidfd)
                    pidfd = None
        try:
            yield pidfd
        finally:
            if pidfd is not None:
                os.close(pidfd)

    def _stamp(self) -> tuple[int, int]:
        try:
            found = (self.path / "state.json").stat()
        except FileNotFoundError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)


class Jobs:
    """The jobs of one session, in one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_session(cls, state_folder: Path, session: str) -> Jobs:
        """Return the jobs of a session, which may be none."""
        return cls(state_folder.absolute() / "jobs" / file_name(session))

    def folder(self, app_id: str) -> JobFolder:
        """Name the folder that a job has, or would have."""
        return JobFolder(self.path / file_name(app_id))

    def all(self) -> list[JobFolder]:
        """Return the folders of all jobs, by name."""
        try:
            names = sorted(os.listdir(self.path))  # noqa: PTH208 - names are all we need
        except FileNotFoundError:
            return []
        return [JobFolder(self.path / name) for name in names if not name.startswith(".")]

    def create(
        self, request: LocalRequest, record: JobRecord, fill: Callable[[Path], None] = lambda _: None
    ) -> tuple[JobFolder, int]:
        """Create a job; return its folder and the descriptor of its lock, which is held.

        `fill` adds further files of the job to the folder, before other processes can see it.
        """
        draft = self.path / f"{NEW}{os.getpid()}-{time.monotonic_ns()}"
        try:
            make_folders(draft)
            write_json(draft / "job.json", request.to_json())
            write_json(draft / "state.json", record.to_json())
            fill(draft)
            lock = os.open(draft / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            clear(draft)
            raise UnavailableError(
                f"cannot write the job to {self.path}: {error.strerror or error}; "
                "set HOLDFAST_HOME to a folder that you can write and that has room"
            ) from error
        except BaseException:
            clear(draft)
            raise
        folder = self.folder(request.app_id)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(folder.path)
        except OSError as error:
            os.close(lock)
            clear(draft)
            if folder.path.exists():
                raise UsageError(f"the job {request.app_id} has already been submitted: make a new request") from None
            raise UnavailableError(
                f"cannot keep jobs in {self.path}: {error}; HOLDFAST_HOME names the folder"
            ) from error
        return folder, lock

    # -- old jobs ------------------------------------------------------------------------------------------------------

    def should_prune(self, policy: Policy) -> bool:
        """Whether it is worth looking for jobs to drop; cheap."""
        try:
            last = (self.path / ".pruned").stat().st_mtime
        except FileNotFoundError:
            last = 0.0
        return time.time() - last > PRUNE_EVERY_S or len(self.all()) > policy.jobs * PRUNE_OVER

    def prune(self, policy: Policy) -> list[str]:
        """Drop finished jobs beyond the limits and what killed processes left half-made; returns their names."""
        from holdfast.schedulers.local.parse import judge
        from holdfast.specs.states import is_terminal

        with contextlib.suppress(OSError):
            (self.path / ".pruned").touch()
        now = time.time()
        finished = {}
        for folder in self.all():
            with contextlib.suppress(OSError, UsageError):
                looked = folder.look()
                if looked is not None and not looked[1].alive and is_terminal(judge(*looked).state):
                    ended = looked[0].ended_at or (folder.path / "state.json").stat().st_mtime
                    finished[folder.path.name] = Finished(folder.path.name, ended, folder.size())
        dropped = choose(list(finished.values()), now, policy)
        for name in dropped:
            JobFolder(self.path / name).remove()
        for name in os.listdir(self.path):  # noqa: PTH208 - names are all we need
            if name.startswith((NEW, GONE)):
                with contextlib.suppress(OSError):
                    if now - (self.path / name).stat().st_mtime > LEFTOVER_S:
                        clear(self.path / name)
        return dropped


# -- small things ------------------------------------------------------------------------------------------------------


def read_record(path: Path, read: Callable[[dict[str, Any]], R]) -> R | None:
    """Return the record in a file, or None if there is none; a damaged one is a `UsageError`."""
    try:
        data = json.loads(path.read_bytes())
        if isinstance(data, dict):
            return read(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UsageError:
        raise  # of a newer version
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"the record {path} is damaged: delete the job, or the folder {path.parent}")


def write_json(path: Path, data: dict[str, Any], *, sync: bool = False) -> None:
    """Write a record atomically, readable by this user alone."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(data, file, default=str)
            if sync:
                file.flush()
                os.fdatasync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def clear(path: Path) -> None:
    """Remove a folder and all in it, as far as that can be."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def wait_end(pidfd: int | None, timeout_s: float) -> None:
    """Wait until a process ends or the time is over; without a process just wait."""
    if pidfd is None:
        time.sleep(timeout_s)
        return
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if poll.poll(timeout_s * 1000):
        time.sleep(0.001)  # so that a caller that asks again, because a lock is still held, does not spin


def start_of(pid: int) -> int:
    """Return when a process was started, in ticks since the boot; with its pid that names it for good."""
    # Not the workers' reader of the same file: importing their package would take longer than a whole command.
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return int(text.rpartition(")")[2].split()[19])


def boot_id() -> str:
    """Return the kernel's name for this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def booted_at() -> str:
    """Return when the machine was started, for people."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("btime "):
                return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(line.split()[1])))
    return "an unknown time"
