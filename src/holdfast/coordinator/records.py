"""Records of runs on disk: one small file each, whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import msgspec

from holdfast.coordinator.state import RunRecord
from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.filenames import file_name
from holdfast.home import make_folders
from holdfast.typed import learned

_SUFFIX = ".json"


class _Named(msgspec.Struct, frozen=True):
    """Which run a record is of; the name of a file cannot hold every id in full."""

    run: str | None = None


class Records(Protocol):
    """Where a coordinator keeps the records of its runs."""

    def load(self) -> dict[str, RunRecord]:
        """Return every record."""

    def save(self, run: str, record: RunRecord) -> None:
        """Keep one record; raises `OSError` if it cannot be kept."""

    def forget(self, run: str) -> None:
        """Remove the record of a run."""


class RecordFolder:
    """The records of one coordinator's runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            make_folders(folder)
        except OSError as error:
            raise UsageError(f"cannot keep records in {folder}: {error.strerror}; give another --state-dir") from None

    def load(self) -> dict[str, RunRecord]:
        """Read every record; one that cannot be read is reported and left out."""
        records: dict[str, RunRecord] = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                data = path.read_bytes()
                run = msgspec.json.decode(data, type=learned(_Named)).run
                # Records of 0.1.0 did not name their run; their file names did.
                run = unquote(path.name.removesuffix(_SUFFIX)) if run is None else run
                records[run] = msgspec.json.decode(data, type=learned(RunRecord))
                path.rename(self._path(run))
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                facts.warn("record_unreadable", f"the record {path} is ignored: {error}")
        return records

    def save(self, run: str, record: RunRecord) -> None:
        """Write one record so that a crash at any moment leaves the old one or the new one."""
        path = self._path(run)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode({"run": run, **msgspec.structs.asdict(record)}))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def forget(self, run: str) -> None:
        """Remove the record of a run."""
        self._path(run).unlink(missing_ok=True)

    def _path(self, run: str) -> Path:
        return self._folder / (file_name(run) + _SUFFIX)
