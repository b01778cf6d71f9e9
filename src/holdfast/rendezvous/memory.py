"""What an agent leaves on disk for the one that is started in its place: which rounds it was in, what it has promised.

One small file for each agent of a run on this host, and a lock beside it that its agent holds while it lives. An agent
takes the first file whose lock is free: its owner is surely gone, whatever the network says. The file is removed when
the run is over. One that was not touched for `VALID_S` is void, so that the id of a run that came to a bad end can be
used again.

The file is written in place, in two halves by turns, each with a checksum: to replace it, as is done elsewhere, makes
some file systems wait for their disk, and a round must not. What was written outlives the process, though perhaps not
a power cut a moment later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
import zlib
from pathlib import Path

import msgspec

from holdfast.coordinator.messages import Memory
from holdfast.errors import HoldfastError
from holdfast.facts import facts
from holdfast.filenames import file_name
from holdfast.home import make_folders, state_folder
from holdfast.typed import learned
from holdfast.wire.forks import keep_descriptor, let_go

#: For how long a memory counts after its agent was last alive, and how often an agent says that it is.
VALID_S, TOUCH_S = 600.0, 60.0
#: After so long a memory is removed, whichever run it is of.
KEPT_S = 86_400.0
#: At most so often an agent that starts looks through all memories for such.
SWEEP_S = 3600.0
#: So many agents of one run on one host have a memory.
AGENTS_MAX = 64
FOLDER, SUFFIX = "members", ".memory"
#: The room for one half, and what stands before it: its length and its checksum.
HALF_BYTES = 1 << 16
_HEAD = struct.Struct("<II")
#: Those of this process, which may have many agents: their locks need not be tried.
_taken: set[str] = set()


class MemoryFile:
    """The memory of one agent; where none can be kept, it is told once, and everything else works."""

    def __init__(self, run: str, endpoint: str, host: str) -> None:
        #: What the agent before this one knew; None if there was none, or too long ago.
        self.found: Memory | None = None
        self._path: Path | None = None
        self._lock = self._file = -1
        #: Counts what was written, also by the agents before this one: the later half counts.
        self._written = 0
        self._touched_at = 0.0
        try:
            folder = state_folder() / FOLDER
            make_folders(folder)
            self._take(folder, file_name(f"{host} {run} {endpoint}"))
        except (HoldfastError, OSError) as error:
            self._tell(error)

    def keep(self, memory: Memory) -> None:
        """Write the memory."""
        if self._path is None:
            return
        body = msgspec.json.encode((self._written + 1, memory))
        try:
            if len(body) > HALF_BYTES - _HEAD.size:
                raise OSError(errno.EFBIG, "it is too large")
            if self._file < 0:
                self._file = keep_descriptor(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._written += 1
            head = _HEAD.pack(len(body), zlib.crc32(body))
            os.pwrite(self._file, head + body, self._written % 2 * HALF_BYTES)
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
        self._file = _close(self._file)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let the next agent have the memory; where there is none, nothing is left."""
        if self._path is not None and not self._path.exists():
            with contextlib.suppress(OSError):
                self._path.with_suffix(".lock").unlink()
        _taken.discard(str(self._path))
        self._path = None
        self._file, self._lock = _close(self._file), _close(self._lock)

    def _take(self, folder: Path, name: str) -> None:
        _sweep(folder)
        for number in range(AGENTS_MAX):
            if f"{folder}/{name}.{number}{SUFFIX}" in _taken:
                continue
            path = folder / f"{name}.{number}{SUFFIX}"
            lock = _lock(path)
            if lock is not None:
                self._lock, self._path = keep_descriptor(lock), path
                _taken.add(str(path))
                self.found = self._read(path)
                return

    def _read(self, path: Path) -> Memory | None:
        try:
            if time.time() - path.stat().st_mtime > VALID_S:
                path.unlink()
                return None
            halves = [half for half in map(_decoded, _halves(path.read_bytes())) if half is not None]
            self._written, found = max(halves, key=lambda half: half[0])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            facts.warn("memory_unreadable", f"the memory {path} of an earlier agent is left out: {error}")
            return None
        return found

    def _tell(self, error: Exception) -> None:
        _taken.discard(str(self._path))
        self._path = None
        facts.warn(
            "memory_not_kept",
            f"an agent that is started again in this one's place will not know that it was in the run: {error}",
        )


def _halves(data: bytes) -> tuple[bytes, bytes]:
    return data[:HALF_BYTES], data[HALF_BYTES:]


def _decoded(half: bytes) -> tuple[int, Memory] | None:
    """Read one half; None if it was never, or not wholly, written."""
    if len(half) < _HEAD.size:
        return None
    length, checksum = _HEAD.unpack_from(half)
    body = half[_HEAD.size : _HEAD.size + length]
    if not body or len(body) != length or zlib.crc32(body) != checksum:
        return None
    written: tuple[int, Memory] = msgspec.json.decode(body, type=learned(tuple[int, Memory]))
    return written


def _close(descriptor: int) -> int:
    """Close a descriptor, if there is one."""
    if descriptor >= 0:
        let_go(descriptor)
        os.close(descriptor)
    return -1


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
    """Remove what agents have left that no one started again; now and then, since there may be thousands."""
    now, swept = time.time(), folder / "swept"
    with contextlib.suppress(FileNotFoundError):
        if abs(now - swept.stat().st_mtime) < SWEEP_S:
            return
    swept.touch(0o600)
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > KEPT_S and (lock := _lock(path)) is not None:
                path.unlink()
                path.with_suffix(".lock").unlink()
                os.close(lock)
