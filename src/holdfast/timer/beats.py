"""The agent's side of the heartbeat: makes the file that workers write their beats into, and reads it.

The file is locked for as long as the agent lives. The lock is the proof of life: agents in other containers that share
the memory have their own process ids, so a process id in a name would prove nothing. Only a file that no process holds
is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import tempfile
from pathlib import Path

from holdfast.errors import UnavailableError, UsageError
from holdfast.private import PrivateFolder, make_private, user_folder_name
from holdfast.timer.hang import Beat
from holdfast.timer.heartbeat import COUNT, FILE_VARIABLE, LAST, LONGEST, SLOT_BYTES, SLOT_NUMBERS, SLOT_VARIABLE, STEP

#: Memory, where there is such a place: a beat must never wait for a disk.
_MEMORY = Path("/dev/shm")
_PREFIX = "beats-"
#: How often to make another file where a sweep has taken the new one before it was locked.
TRIES_MAX = 10


def _open_folder() -> PrivateFolder:
    """Return this user's folder in memory, or a fresh one where that name is another user's."""
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
        with contextlib.suppress(OSError):  # it is held, gone by now, or no file of ours
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
            # A sweep may come between the two: then it has the lock, or the file has lost its name.
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
    raise UnavailableError("a file for heartbeats cannot be made: it is removed again and again")


class BeatBook:
    """One attempt's beats: a slot for each local rank, in a file that goes away with `close`."""

    def __init__(self, size: int) -> None:
        self._folder, self._name, self._descriptor = _create(size * SLOT_BYTES)
        self.path = str(self._folder.path / self._name)
        self._memory = mmap.mmap(self._descriptor, size * SLOT_BYTES)
        self._numbers = memoryview(self._memory).cast("q")

    def variables(self, local_rank: int) -> dict[str, str]:
        """What a worker that is yet to start needs in its environment to find its slot, which is empty from now on."""
        begin = local_rank * SLOT_NUMBERS
        for number in range(begin, begin + SLOT_NUMBERS):
            self._numbers[number] = 0
        return {FILE_VARIABLE: self.path, SLOT_VARIABLE: str(local_rank)}

    def read(self, local_rank: int) -> Beat:
        """Return what a worker has shown so far."""
        begin = local_rank * SLOT_NUMBERS
        slot = self._numbers[begin : begin + SLOT_NUMBERS]
        last = slot[LAST]
        return Beat(max(slot[COUNT], 0), last / 1e9 if last > 0 else None, max(slot[LONGEST], 0) / 1e9, slot[STEP])

    def close(self) -> None:
        """Remove the file; workers that still hold it go on writing into nothing."""
        self._numbers.release()
        self._memory.close()
        self._folder.unlink(self._name)
        os.close(self._descriptor)
        self._folder.close()
        with contextlib.suppress(OSError):
            self._folder.path.rmdir()  # unless other runs have something there
