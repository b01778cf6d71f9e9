"""Slots: files in memory that outlive the process that wrote them, each with one state or none.

A slot is a page with the record, then the state. The record is wiped before the state is written, and set with a
checksum when all of it is there: a process that is killed in between leaves an empty slot. A slot belongs to the
process that holds its lock, so a successor can take over the slots of a dead process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import struct
import sys
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast.checkpoint.keys import Key
from holdfast.errors import ShardMissingError, UsageError

PAGE = 4096
SUFFIX = ".slot"
_MAGIC = b"HFSLOT01"
_START = struct.Struct("<8sII")


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a slot; the nonce is new with every write."""

    key: Key
    nbytes: int
    nonce: str


class Slot:
    """A slot that this process owns and writes."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self.record: Record | None = None
        #: Whether this process still needs its state.
        self.held = False
        self.capacity = os.fstat(descriptor).st_size - PAGE

    @classmethod
    def create(cls, folder: Path, nbytes: int, *, populate: bool = True) -> Slot:
        """Make a slot with room for a state; raises `OSError`, and leaves nothing behind, if there is no memory."""
        path = folder / f"{secrets.token_hex(8)}{SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = PAGE + max(nbytes, 1)
            os.ftruncate(descriptor, size)
            # Reserve the memory now: if it were missing later, a write to it would kill the process.
            os.posix_fallocate(descriptor, 0, size if populate else PAGE)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        return cls(path, descriptor)

    @classmethod
    def take_over(cls, path: Path) -> Slot | None:
        """Take over a slot whose owner is dead; None if the owner is alive or the slot is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            slot = cls(path, descriptor)
            if slot.capacity < 0 or not path.exists():
                raise OSError
        except OSError:
            os.close(descriptor)
            return None
        slot.record = read_record(path)
        return slot

    def state(self, nbytes: int) -> memoryview:
        """Return the memory for a state, to write to, between `wipe` and `commit`."""
        assert nbytes <= self.capacity
        if self._view is None:
            self._map = mmap.mmap(self._descriptor, 0, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
            self._view = memoryview(self._map)
        return self._view[PAGE : PAGE + nbytes]

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Write a part of the state through the file, so that no more memory is taken than was written."""
        os.posix_fallocate(self._descriptor, PAGE + start, max(len(data), 1))
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], PAGE + start + done)

    def wipe(self) -> None:
        """Make the slot empty."""
        self.record = None
        os.pwrite(self._descriptor, bytes(_START.size), 0)

    def commit(self, key: Key, nbytes: int) -> None:
        """Mark the state as whole; from now on it is visible."""
        self.record = Record(key, nbytes, secrets.token_hex(8))
        text = json.dumps({**key.as_data(), "nbytes": nbytes, "nonce": self.record.nonce}).encode()
        os.pwrite(self._descriptor, _START.pack(_MAGIC, len(text), zlib.crc32(text)) + text, 0)

    def close(self, *, remove: bool) -> None:
        """Release the slot; its state stays for other processes unless it is removed."""
        if remove:
            self.path.unlink(missing_ok=True)
        if self._view is not None:
            give_back(self._view)
        # Arrays may still use the memory; then it goes when they do.
        with contextlib.suppress(BufferError):
            if self._view is not None:
                self._view.release()
            if self._map is not None:
                self._map.close()
        self._view = self._map = None
        os.close(self._descriptor)


def give_back(memory: memoryview) -> None:
    """Unpin memory that is about to be unmapped."""
    device = sys.modules.get("holdfast.checkpoint.device")
    if device is not None:
        device.unpin(memory)


def read_record(path: Path) -> Record | None:
    """Return the record of a slot, or None if it is empty."""
    try:
        with _open(path) as file:
            page = file.read(PAGE)
    except OSError:
        return None
    return _parse(page)


def _open(path: Path) -> BinaryIO:
    """Open a slot to read; a link, which we never make, is not followed."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def scan(folder: Path) -> dict[Path, Record]:
    """Return every slot of a folder that holds a state."""
    try:
        paths = sorted(folder.glob(f"*{SUFFIX}"))
    except OSError:
        return {}
    found = ((path, read_record(path)) for path in paths)
    return {path: record for path, record in found if record is not None}


def _parse(page: bytes | memoryview) -> Record | None:
    if len(page) < _START.size:
        return None
    magic, length, crc = _START.unpack(page[: _START.size])
    text = bytes(page[_START.size : _START.size + length])
    if magic != _MAGIC or len(text) != length or zlib.crc32(text) != crc:
        return None
    try:
        data = json.loads(text)
        key = Key(data["step"], data["origin"], data["world"], data["shard"])
        return Record(key, data["nbytes"], data["nonce"])
    except (ValueError, KeyError, TypeError, UsageError):
        return None


#: Mappings that are in use, by the file that they show: such a slot is not written to.
_mapped: dict[str, weakref.WeakSet[mmap.mmap]] = {}


class SlotReader:
    """A state in a slot, mapped into this process: reading copies nothing.

    The memory is private: arrays made from it may be written to, and the slot stays as it is.
    """

    def __init__(self, path: Path, key: Key | None = None) -> None:
        record = read_record(path)
        if record is None or (key is not None and record.key != key):
            raise ShardMissingError(f"the memory that held {key.stem if key else path.name} now holds something else")
        with _open(path) as file:
            mapping = mmap.mmap(file.fileno(), PAGE + record.nbytes, access=mmap.ACCESS_COPY)
        _mapped.setdefault(str(path), weakref.WeakSet()).add(mapping)
        self._path = path
        self._record = record
        self._view = memoryview(mapping)[PAGE:]
        self.check()

    @property
    def nbytes(self) -> int:
        """The size of the state in bytes."""
        return self._record.nbytes

    @property
    def key(self) -> Key:
        """The key of the shard."""
        return self._record.key

    def read(self, start: int, stop: int) -> memoryview:
        """Return a range of its bytes."""
        return self._view[start:stop]

    def check(self) -> None:
        """Raise `ShardMissingError` if the slot was written to since it was opened."""
        if read_record(self._path) != self._record:
            raise ShardMissingError(
                f"{self._record.key.stem} of step {self._record.key.step} was overwritten while it was read"
            )

    def close(self) -> None:
        """Release the mapping, unless arrays still use it."""
        self._view = memoryview(b"")


def is_mapped(path: Path) -> bool:
    """Whether this process still uses the state of a slot."""
    return bool(_mapped.get(str(path)))
