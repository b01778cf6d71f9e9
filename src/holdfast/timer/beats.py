"""The agent's side of the heartbeat: makes the file to which workers write their beats, and reads it.

The agent holds a lock on the file for as long as it lives. Agents in other containers that share the memory have their
own process ids, so a process id in the name would prove nothing: only a file without a lock is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import UnavailableError, UsageError
from holdfast.private import PrivateFolder, make_private, user_folder_name
from holdfast.timer.hang import Beat
from holdfast.timer.heartbeat import (
    COUNT,
    FILE_VARIABLE,
    FIRST,
    FIRST_STEP,
    FIRST_STEP_AT,
    LAST,
    LONGEST,
    SLOT_BYTES,
    SLOT_NUMBERS,
    SLOT_VARIABLE,
    STEP,
    STEPS,
)

#: In memory, if there is such a file system: a beat must never wait for a disk.
_MEMORY = Path("/dev/shm")
_PREFIX = "beats-"
#: How often to try again if a sweep removes the new file before it is locked.
TRIES_MAX = 10


class Progress(NamedTuple):  # every launch imports it, and a dataclass takes longer to make
    """How far a worker got: its steps, and when it made the first and the last, by this host's wall clock.

    The numbers of steps are None where the program passes none to `heartbeat`.
    """

    steps: int
    first_at: float
    last_at: float
    first_step: int | None = None
    last_step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Describe it as plain data."""
        return self._asdict()


def _open_folder() -> PrivateFolder:
    """Return this user's folder in memory, or a fresh one if another user has that name."""
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    try:
        return make_private(base, user_folder_name())
    except UsageError:
        fresh = tempfile.mkdtemp(prefix="holdfast_beats_", dir=base)
        return PrivateFolder(Path(fresh), os.open(fresh, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def sweep(folder: PrivateFolder) -> None:
    """Remove the files of agents that were killed."""
    for name in folder.names():
        if not name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError):  # it is locked, gone, or not one of ours
            descriptor = folder.file(name, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.is_still(name, descriptor):
                    folder.unlink(name)
            finally:
                os.close(descriptor)


def _create(size: int) -> tuple[PrivateFolder, str, int]:
    """Make a file and lock it; returns its folder, its name and a descriptor that holds the lock."""
    for _ in range(TRIES_MAX):
        folder = _open_folder()
        sweep(folder)
        name = f"{_PREFIX}{secrets.token_hex(8)}"
        try:
            descriptor = folder.file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:  # the last run of this user has just removed the folder
            continue
        try:
            # A sweep in between either holds the lock or has removed the file.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.is_still(name, descriptor):
                os.ftruncate(descriptor, size)
                return folder, name, descriptor
        except BlockingIOError:
            folder.unlink(name)
        except BaseException:
            os.close(descriptor)
            folder.unlink(name)
            raise
        os.close(descriptor)
    raise UnavailableError("cannot make a file for heartbeats: another process keeps removing it")


class BeatBook:
    """The beats of one attempt: a slot for each local rank, in a file that `close` removes."""

    def __init__(self, size: int) -> None:
        self._folder, self._name, self._descriptor = _create(size * SLOT_BYTES)
        self.path = str(self._folder.path / self._name)
        self._memory = mmap.mmap(self._descriptor, size * SLOT_BYTES)
        self._numbers = memoryview(self._memory).cast("q")

    def variables(self, local_rank: int) -> dict[str, str]:
        """Return the variables by which a new worker finds its slot, and empty that slot."""
        begin = local_rank * SLOT_NUMBERS
        for number in range(begin, begin + SLOT_NUMBERS):
            self._numbers[number] = 0
        return {FILE_VARIABLE: self.path, SLOT_VARIABLE: str(local_rank)}

    def read(self, local_rank: int) -> Beat:
        """Return the beats of a worker so far."""
        begin = local_rank * SLOT_NUMBERS
        slot = self._numbers[begin : begin + SLOT_NUMBERS]
        last = slot[LAST]
        return Beat(max(slot[COUNT], 0), last / 1e9 if last > 0 else None, max(slot[LONGEST], 0) / 1e9, slot[STEP])

    def progress(self, local_rank: int) -> Progress | None:
        """Return how far a worker is; None before its first beat."""
        begin = local_rank * SLOT_NUMBERS
        return _progress(self._numbers[begin : begin + SLOT_NUMBERS])

    def close(self) -> None:
        """Remove the file; workers that still have it open write to memory that no process reads."""
        self._numbers.release()
        self._memory.close()
        self._folder.unlink(self._name)
        os.close(self._descriptor)
        self._folder.close()
        with contextlib.suppress(OSError):
            self._folder.path.rmdir()  # unless other runs have something there


def read_progress(path: str, slots: Mapping[int, int]) -> dict[int, Progress]:
    """Return how far the workers of a live agent are, by rank, from its file; `slots` are local ranks by rank.

    A worker without a beat is left out; so are all if the file is gone.
    """
    try:
        numbers = memoryview(Path(path).read_bytes()).cast("q")
    except (OSError, TypeError):  # it is gone, or its end is not written yet
        return {}
    found = {}
    for rank, slot in slots.items():
        begin = slot * SLOT_NUMBERS
        if begin + SLOT_NUMBERS <= len(numbers) and (progress := _progress(numbers[begin : begin + SLOT_NUMBERS])):
            found[rank] = progress
    return found


def _progress(slot: Sequence[int]) -> Progress | None:
    if slot[COUNT] <= 0 or not slot[FIRST]:
        return None
    since_boot = time.time() - time.monotonic()
    numbered = slot[STEPS] > 0
    first = slot[FIRST_STEP_AT] if numbered else slot[FIRST]
    last = max(abs(slot[LAST]), first)
    return Progress(
        steps=slot[STEPS] if numbered else slot[COUNT],
        first_at=first / 1e9 + since_boot,
        last_at=last / 1e9 + since_boot,
        first_step=slot[FIRST_STEP] if numbered else None,
        last_step=slot[STEP] if numbered else None,
    )
