"""Walks a workspace that lies on any file system of fsspec's."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.workspace.ignore import Ignore

TORCHX_IGNORE = ".torchxignore"
#: What builds an image is always part of it.
DOCKERFILE = "Dockerfile.torchx"


def walk_workspace(
    fs: Any, path: str, ignore_name: str = TORCHX_IGNORE
) -> Iterator[tuple[str, Iterable[str], Mapping[str, Mapping[str, object]]]]:
    """Yield each folder with its folders and its files by name, without what the workspace's ignore file names."""
    rules = _read(fs, posixpath.join(path, ignore_name))
    pending = [path]
    while pending:
        folder = pending.pop()
        below = posixpath.relpath(folder, path)
        entries = {posixpath.basename(each["name"].rstrip("/")): each for each in fs.ls(folder, detail=True)}
        kept = {
            name: entry
            for name, entry in sorted(entries.items())
            if name == DOCKERFILE
            or not rules.ignores(posixpath.normpath(posixpath.join(below, name)), entry["type"] == "directory")
        }
        folders = [name for name, entry in kept.items() if entry["type"] == "directory"]
        yield folder, folders, {name: entry for name, entry in kept.items() if entry["type"] != "directory"}
        # A folder that is left out may hold something that a later line brings back.
        inside = [name for name, entry in entries.items() if entry["type"] == "directory"]
        chosen = inside if rules.may_bring_back else folders
        pending += [posixpath.join(folder, name) for name in reversed(chosen)]


def _read(fs: Any, path: str) -> Ignore:
    if not fs.exists(path):
        return Ignore(defaults=())
    with fs.open(path, "rt") as file:
        return Ignore([line.partition("#")[0] for line in file], defaults=())
