"""What an agent leaves on disk for the one that is started in its place: which rounds it was in, what it has promised.

One small file for each agent of a run on this host, and a lock beside it that its agent holds while it lives. An agent
takes the first file whose lock is free: its owner is surely gone, whatever the network says. The file is removed when
the run is over. One that was not touched for `VALID_S` is void, so that the id of a run that came to a bad end can be
used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import msgspec

from holdfast.coordinator.messages import Memory
from holdfast.errors import HoldfastError
from holdfast.facts import facts
from holdfast.filenames import file_name
from holdfast.home import make_folders, state_folder
from holdfast.wire.forks import keep_descriptor, let_go

#: For how long a memory counts after its agent was last alive, and how often an agent says that it is.
VALID_S, TOUCH_S = 600.0, 60.0
#: After so long a memory is removed, whichever run it is of.
KEPT_S = 86_400.0
#: So many agents of one run on one host have a memory.
AGENTS_MAX = 64
FOLDER = "members"


class MemoryFile:
    """The memory of one agent; where none can be kept, it is told once, and everything else works."""

    def __init__(self, run: str, endpoint: str, host: str) -> None:
        #: What the agent before this one knew; None if there was none, or too long ago.
        self.found: Memory | None = None
        self._path: Path | None = None
        self._lock = -1
        self._touched_at = 0.0
        try:
            folder = state_folder() / FOLDER
            make_folders(folder)
            self._take(folder, file_name(f"{host} {run} {endpoint}"))
        except (HoldfastError, OSError) as error:
            self._tell(error)

    def keep(self, memory: Memory) -> None:
        """Write the memory, whole; it outlives this process, though perhaps not a power cut a moment later."""
        if self._path is None:
            return
        draft = self._path.with_suffix(".draft")
        try:
            draft.write_bytes(msgspec.json.encode(memory))
            draft.replace(self._path)
        except OSError as error:
            self._tell(error)

    def touch(self) -> None:
        """Say that this agent is alive; called often, and looks at the file only now and then."""
        now = time.monotonic()
        if self._path is not None and now >= self._touched_at + TOUCH_S:
            self._touched_at = now
            with contextlib.suppress(OSError):  # as before the first round, when there is none
                os.utime(self._path)

    def forget(self) -> None:
        """Remove the memory: the run is over."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let the next agent have the memory; where there is none, nothing is left."""
        if self._path is not None and not self._path.exists():
            with contextlib.suppress(OSError):
                self._path.with_suffix(".lock").unlink()
        self._path = None
        if self._lock >= 0:
            let_go(self._lock)
            os.close(self._lock)
            self._lock = -1

    def _take(self, folder: Path, name: str) -> None:
        _sweep(folder)
        for number in range(AGENTS_MAX):
            path = folder / f"{name}.{number}.json"
            lock = _lock(path)
            if lock is not None:
                self._lock, self._path = keep_descriptor(lock), path
                self.found = self._read(path)
                return

    def _read(self, path: Path) -> Memory | None:
        try:
            if time.time() - path.stat().st_mtime > VALID_S:
                path.unlink()
                return None
            return msgspec.json.decode(path.read_bytes(), type=Memory)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            facts.warn("memory_unreadable", f"the memory {path} of an earlier agent is left out: {error}")
            return None

    def _tell(self, error: Exception) -> None:
        self._path = None
        facts.warn(
            "memory_not_kept",
            f"an agent that is started again in this one's place will not know that it was in the run: {error}",
        )


def _lock(path: Path) -> int | None:
    """Take the lock of a memory; None while its agent lives."""
    beside = path.with_suffix(".lock")
    lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino == beside.stat().st_ino:  # else its owner has removed it meanwhile
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _sweep(folder: Path) -> None:
    """Remove what agents have left that no one started again."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_S and (lock := _lock(path)) is not None:
                path.unlink()
                path.with_suffix(".lock").unlink()
                os.close(lock)
