"""Records of runs on disk: one small file each, whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from holdfast.coordinator.record import RunRecord
from holdfast.errors import UsageError
from holdfast.facts import facts

_SUFFIX = ".json"


class RecordFolder:
    """The records of one coordinator's runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot keep records in {folder}: {error.strerror}; give another --state-dir") from None

    def load(self) -> dict[str, RunRecord]:
        """Read every record; one that cannot be read is reported and left out."""
        records: dict[str, RunRecord] = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                records[unquote(path.name.removesuffix(_SUFFIX))] = msgspec.json.decode(
                    path.read_bytes(), type=RunRecord
                )
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                facts.warn("record_unreadable", f"the record {path} is left out: {error}")
        return records

    def save(self, run: str, record: RunRecord) -> None:
        """Write one record so that a crash at any moment leaves the old one or the new one."""
        path = self._path(run)
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def forget(self, run: str) -> None:
        """Remove the record of a run."""
        self._path(run).unlink(missing_ok=True)

    def _path(self, run: str) -> Path:
        return self._folder / (quote(run, safe="") + _SUFFIX)
