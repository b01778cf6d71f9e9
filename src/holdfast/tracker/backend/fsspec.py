"""A tracker that keeps files in a folder, on any storage that fsspec reaches; laid out as TorchX's is.

    <root>/<run id in base 32>/metadata/<one JSON file for each call>
                               artifacts/<one JSON file for each call>
                               sources/<source's id in base 32>      one line for each artifact
                               descendants/<id in base 32>           the same from the other side

Metadata and artifacts are never overwritten, so any number of processes may write at once.
"""

from __future__ import annotations

import json
import os
import posixpath
import time
from base64 import b32decode, b32encode
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["FsspecTracker", "Lineage", "TrackerArtifact", "TrackerBase", "TrackerSource", "create"]


class FsspecTracker(TrackerBase):
    """Keeps runs below a folder that must exist."""

    def __init__(self, fs: Any, root_dir: str) -> None:
        if not fs.exists(root_dir):
            raise UsageError(f"the tracker's folder '{root_dir}' does not exist: create it first")
        self.fs = fs
        self._root = root_dir

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Store the path of an artifact of a run."""
        self._write(run_id, "artifacts", {"name": name, "path": path, "metadata": metadata})

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run, by name; of equal names the latest."""
        found = self._read(run_id, "artifacts")
        return {each["name"]: TrackerArtifact(each["name"], each["path"], each["metadata"]) for each in found}

    def add_metadata(self, run_id: str, **metadata: object) -> None:
        """Store metadata of a run."""
        self._write(run_id, "metadata", {"metadata": metadata})

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the metadata of a run; of equal names the latest."""
        return {name: value for each in self._read(run_id, "metadata") for name, value in each["metadata"].items()}

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Store that a run was made from another, on both sides."""
        self._note(run_id, "sources", source_id, artifact_name)
        self._note(source_id, "descendants", run_id, artifact_name)

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return the sources of a run, or only those with that artifact."""
        found = []
        for path in self._list(self._path(run_id, "sources")):
            source_id = _decode(posixpath.basename(path))
            names = self.fs.cat_file(path).decode().split("\n")
            artifacts: list[str | None] = [name.strip() for name in names if name.strip()]
            found += [TrackerSource(source_id, each) for each in artifacts or [None]]
        return [each for each in found if artifact_name is None or each.artifact_name == artifact_name]

    def lineage(self, run_id: str) -> Lineage:
        """Return the sources of a run, and the runs that were made from it."""
        paths = self._list(self._path(run_id, "descendants"))
        told = [_decode(posixpath.basename(path)) for path in paths]
        # TorchX writes to a source only if it has such a folder already, which nothing makes.
        return Lineage(list(self.sources(run_id)), list(dict.fromkeys([*told, *self.run_ids(parent_run_id=run_id)])))

    def run_ids(self, parent_run_id: str | None = None) -> Iterable[str]:  # type: ignore[override]
        """Return the runs that have stored something, or those that were made from a given one."""
        found = []
        for path in self._list(self._root):
            try:
                run_id = _decode(posixpath.basename(path.rstrip("/")))
            except ValueError:
                continue  # some other file
            if self._has_told(run_id) and (parent_run_id is None or self._is_from(run_id, parent_run_id)):
                found.append(run_id)
        return sorted(found)

    def __repr__(self) -> str:
        return f"<FsspecTracker: root_path={self._root}>"

    def _is_from(self, run_id: str, source_id: str) -> bool:
        return bool(self.fs.exists(self._path(run_id, "sources", _encode(source_id))))

    def _has_told(self, run_id: str) -> bool:
        """Whether a run is more than the source of another."""
        return any(self.fs.exists(self._path(run_id, kind)) for kind in ("metadata", "artifacts", "sources"))

    def _path(self, run_id: str, *below: str) -> str:
        return posixpath.join(self._root, _encode(run_id), *below)

    def _write(self, run_id: str, kind: str, content: Mapping[str, object]) -> None:
        folder = self._path(run_id, kind)
        self.fs.makedirs(folder, exist_ok=True)
        # Times sort, and the letters after them tell apart files that are written at the same instant.
        name = f"{time.time_ns():020d}-{os.urandom(4).hex()}"
        self.fs.pipe_file(posixpath.join(folder, name), json.dumps(content, default=str).encode())

    def _read(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        return [json.loads(self.fs.cat_file(path)) for path in sorted(self._list(self._path(run_id, kind)))]

    def _note(self, run_id: str, kind: str, other_id: str, artifact_name: str | None) -> None:
        folder = self._path(run_id, kind)
        self.fs.makedirs(folder, exist_ok=True)
        path = posixpath.join(folder, _encode(other_id))
        before = self.fs.cat_file(path).decode() if self.fs.exists(path) else ""
        if not before or (artifact_name and artifact_name not in before.split("\n")):
            self.fs.pipe_file(path, f"{before}{artifact_name or ''}\n".encode())

    def _list(self, folder: str) -> list[str]:
        if not self.fs.exists(folder):
            return []
        return [entry["name"] for entry in self.fs.ls(folder, detail=True, refresh=True)]


def create(config_file: str | None) -> FsspecTracker:
    """Make the tracker that a file of `key=value` lines describes, at any path that fsspec opens.

    It must say `protocol` (as in file, s3, memory) and `root_path`; everything else goes to the file system, where
    `a.b=c` means a value `b` within `a`.
    """
    config = _read_config(config_file or "")
    if "protocol" not in config or "root_path" not in config:
        raise UsageError(f"the tracker's file '{config_file}' must say protocol=... and root_path=...")
    protocol, root = config.pop("protocol"), config.pop("root_path")
    return FsspecTracker(_fsspec().filesystem(protocol, **config), root)


def _read_config(config_file: str) -> dict[str, Any]:
    if not config_file:
        raise UsageError("the tracker 'fsspec' needs a file: set config=<path> in [tracker:fsspec]")
    found: dict[str, Any] = {}
    with _fsspec().open(config_file, "rt") as file:
        for line in file:
            key, equals, value = line.partition("=")
            if equals and not line.startswith("#") and value.strip():
                _put(found, key.strip(), value.strip())
    return found


def _put(config: dict[str, Any], key: str, value: str) -> None:
    *groups, last = key.split(".")
    if not all((*groups, last)):
        raise UsageError(f"'{key}' is not a key of a tracker: write words with single dots between them")
    for group in groups:
        config = config.setdefault(group, {})
    config[last] = value


def _encode(run_id: str) -> str:
    """Write a run's id, which has slashes, as the name of a file."""
    return b32encode(run_id.encode()).decode()


def _decode(name: str) -> str:
    return b32decode(name).decode()


def _fsspec() -> ModuleType:
    try:
        import fsspec
    except ImportError:
        raise UsageError("the tracker needs fsspec: pip install 'holdfast[storage]'") from None
    return fsspec  # type: ignore[no-any-return]
