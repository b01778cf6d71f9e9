"""Checkpoints as the first TorchElastic had them: numbered folders of named streams, by the same names.

What was left open there is filled in: a checkpoint is seen only once it is committed, each stream has a checksum in
its manifest, and one that is torn is refused with the reason.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import time
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from holdfast.checkpoint import telling
from holdfast.checkpoint.keys import Key
from holdfast.errors import CorruptShardError, UsageError

DEFAULT_KEY = "default"
TIER = "filesystem"
_MANIFEST = "manifest.json"

_manager: CheckpointManager | None = None


def set_checkpoint_manager(checkpoint_manager: CheckpointManager | None) -> None:
    """Choose where `CheckpointUtil` keeps checkpoints; None turns them off."""
    global _manager
    _manager = checkpoint_manager


def get_checkpoint_manager() -> CheckpointManager | None:
    """Return what was chosen."""
    return _manager


class Checkpoint(ABC):
    """One checkpoint: streams by key, seen by others once it is committed."""

    @abstractmethod
    def open_output_stream(self, key: str) -> IO[bytes]:
        """Return a stream to write what belongs to a key, in place of what it had."""

    @abstractmethod
    def open_input_stream(self, key: str) -> IO[bytes]:
        """Return a stream to read what belongs to a key; raises `CorruptShardError` if it is damaged."""

    @abstractmethod
    def commit(self) -> None:
        """Make the complete checkpoint visible; a second call does nothing."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the checkpoint."""


class CheckpointManager(ABC):
    """All checkpoints of a training, by number."""

    @abstractmethod
    def create_checkpoint(self) -> Checkpoint:
        """Begin a checkpoint, whose number follows the newest."""

    @abstractmethod
    def get_checkpoint(self, sequence_id: int) -> Checkpoint | None:
        """Return the checkpoint of a number, or None."""

    @abstractmethod
    def get_latest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None."""

    @abstractmethod
    def list_checkpoints(self) -> list[Checkpoint]:
        """Return all checkpoints, the newest first."""


class FileSystemCheckpointManager(CheckpointManager):
    """Keeps checkpoints in numbered folders."""

    def __init__(self, checkpoint_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(checkpoint_dir)

    def create_checkpoint(self) -> FileSystemCheckpoint:
        """Begin a checkpoint in a folder that is hidden until it is committed."""
        number = max(self._numbers(), default=-1) + 1
        draft = self._folder / f".{number}.{secrets.token_hex(4)}"
        draft.mkdir(parents=True)
        return FileSystemCheckpoint(number, self._folder / str(number), draft)

    def get_checkpoint(self, sequence_id: int) -> FileSystemCheckpoint | None:
        folder = self._folder / str(sequence_id)
        return FileSystemCheckpoint(sequence_id, folder) if (folder / _MANIFEST).is_file() else None

    def get_latest_checkpoint(self) -> Checkpoint | None:
        return next(iter(self.list_checkpoints()), None)

    def list_checkpoints(self) -> list[Checkpoint]:
        found = (self.get_checkpoint(number) for number in sorted(self._numbers(), reverse=True))
        return [checkpoint for checkpoint in found if checkpoint is not None]

    def _numbers(self) -> list[int]:
        try:
            return [int(path.name) for path in self._folder.iterdir() if path.name.isdecimal() and path.is_dir()]
        except FileNotFoundError:
            return []


class FileSystemCheckpoint(Checkpoint):
    """One numbered folder, or the draft of one."""

    def __init__(self, sequence_id: int, folder: Path, draft: Path | None = None) -> None:
        self.sequence_id = sequence_id
        self._folder = folder
        self._draft = draft
        self._written: dict[str, dict[str, int]] = {}
        self._began = time.monotonic()

    def open_output_stream(self, key: str) -> IO[bytes]:
        if self._draft is None:
            raise UsageError(f"checkpoint {self.sequence_id} is committed: create a new one to write to")
        return _Output(self._draft / _checked(key), lambda nbytes, crc: self._note(key, nbytes, crc))

    def open_input_stream(self, key: str) -> IO[bytes]:
        try:
            known = json.loads((self._folder / _MANIFEST).read_bytes())["streams"][key]
            data = (self._folder / _checked(key)).read_bytes()
        except FileNotFoundError:
            raise CorruptShardError(f"checkpoint {self.sequence_id} lacks the file of '{key}'") from None
        except (ValueError, KeyError):
            raise CorruptShardError(f"checkpoint {self.sequence_id} has no whole manifest that knows '{key}'") from None
        if len(data) != known["nbytes"] or zlib.crc32(data) != known["crc32"]:
            raise CorruptShardError(f"'{key}' of checkpoint {self.sequence_id} is not as it was written")
        return io.BytesIO(data)

    def commit(self) -> None:
        """Give the folder its number, once everything is on the disk."""
        if self._draft is None:
            return
        manifest = self._draft / _MANIFEST
        manifest.write_text(json.dumps({"holdfast": 1, "streams": self._written}))
        _sync(manifest)
        _sync(self._draft)
        try:
            self._draft.rename(self._folder)
        except OSError as error:
            raise UsageError(f"checkpoint {self.sequence_id} exists already: {error.strerror}") from None
        _sync(self._folder.parent)
        self._draft = None
        nbytes = sum(each["nbytes"] for each in self._written.values())
        took_ms = (time.monotonic() - self._began) * 1000
        telling.written(Key(self.sequence_id, "classic", 1, 0), TIER, nbytes, took_ms, took_ms)

    def discard(self) -> None:
        shutil.rmtree(self._draft or self._folder, ignore_errors=True)

    def _note(self, key: str, nbytes: int, crc: int) -> None:
        self._written[key] = {"nbytes": nbytes, "crc32": crc}


class _Output(io.FileIO):
    """A file that knows its checksum, and is on the disk when it is closed."""

    def __init__(self, path: Path, note: Any) -> None:
        super().__init__(path, "wb")
        self._note = note
        self._crc = self._nbytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            done += super().write(view[done:]) or 0
        self._crc = zlib.crc32(view, self._crc)
        self._nbytes += len(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            self._note(self._nbytes, self._crc)
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class CheckpointUtil:
    """Saves and loads for a training loop: one worker does it, at the same step for all of them."""

    def __init__(self, coordinator: Any) -> None:
        self.coordinator = coordinator
        self.checkpoint_manager = get_checkpoint_manager()
        self.checkpoint_loaded = False

    def load_checkpoint(self, state: Any, rank: int) -> Any:
        """Have rank 0 load the newest whole checkpoint, once; the others take the state from it when they sync."""
        if self.checkpoint_manager is None or self.checkpoint_loaded or rank != 0:
            return state
        for checkpoint in self.checkpoint_manager.list_checkpoints():
            number = getattr(checkpoint, "sequence_id", -1)
            began = time.monotonic()
            try:
                with checkpoint.open_input_stream(DEFAULT_KEY) as stream:
                    state.load(stream)
            except CorruptShardError as torn:
                telling.refused(number, TIER, "", torn)
                continue
            took_ms = (time.monotonic() - began) * 1000
            telling.read({"step": number}, TIER, 0, took_ms, f"checkpoint {number} is the newest that is whole")
            return state
        return state

    def set_checkpoint_loaded(self) -> None:
        """Say that the state is no longer a fresh one: from now on nothing is loaded."""
        self.checkpoint_loaded = True

    def save_checkpoint(self, state: Any, rank: int) -> None:
        """Have rank 0 save the state if the coordinator or the state asks for it; a failure is reported, not raised."""
        if self.checkpoint_manager is None:
            return
        if not (self.coordinator.should_save_checkpoint() or state.should_save_checkpoint(rank)):
            return
        if rank == 0:
            self._save(self.checkpoint_manager, state)
        barrier = getattr(self.coordinator, "barrier", None)
        if callable(barrier):
            barrier()

    def _save(self, manager: CheckpointManager, state: Any) -> None:
        checkpoint: Checkpoint | None = None
        try:
            checkpoint = manager.create_checkpoint()
            with checkpoint.open_output_stream(DEFAULT_KEY) as stream:
                state.save(stream)
            checkpoint.commit()
        except Exception as error:  # noqa: BLE001 - a save that fails must not end the training
            if checkpoint is not None:
                checkpoint.discard()
            telling.failed(getattr(checkpoint, "sequence_id", -1), TIER, error)


def _checked(key: str) -> str:
    if not key or "/" in key or key.startswith(".") or key == _MANIFEST:
        raise UsageError(f"'{key}' cannot be a key: use a plain name")
    return key


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
