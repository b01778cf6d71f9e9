"""Workspaces that are folders: copied to a folder that the job's nodes can read, which becomes the role's image."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.workspace.api import Workspace, WorkspaceMixin
from holdfast.workspace.ignore import Ignore
from holdfast.workspace.shipment import ship

if TYPE_CHECKING:
    from holdfast.specs import CfgVal, Role

__all__ = ["DirWorkspaceMixin", "TmpDirWorkspaceMixin", "WorkspaceMixin", "walk_workspace"]

TORCHX_IGNORE = ".torchxignore"
#: Never ignored: it builds the image.
DOCKERFILE = "Dockerfile.torchx"


class DirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace to the folder that the run option `job_dir` names, which must not exist yet."""

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Copy the workspace, without what its ignore file names; nothing happens without a `job_dir`."""
        job_dir = cfg.get("job_dir")
        if job_dir is None:
            return
        target = Path(str(job_dir))
        try:
            target.mkdir()
        except FileExistsError:
            raise UsageError(f"job_dir={job_dir} exists already: name a new folder for each job") from None
        ship(workspace, target)
        role.image = str(job_dir)


class TmpDirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace to a new temporary folder."""

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        del cfg
        target = tempfile.mkdtemp(prefix="holdfast_workspace")
        ship(workspace, Path(target))
        role.image = target


def walk_workspace(
    fs: Any, path: str, ignore_name: str = TORCHX_IGNORE
) -> Iterator[tuple[str, Iterable[str], Mapping[str, Mapping[str, object]]]]:
    """Yield each folder of a workspace on any file system of fsspec, with its folders and its files by name.

    Files that the workspace's ignore file names are not among them.
    """
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
        # An ignored folder may hold a file that a later line brings back.
        inside = [name for name, entry in entries.items() if entry["type"] == "directory"]
        chosen = inside if rules.may_bring_back else folders
        pending += [posixpath.join(folder, name) for name in reversed(chosen)]


def _read(fs: Any, path: str) -> Ignore:
    if not fs.exists(path):
        return Ignore(defaults=())
    with fs.open(path, "rt") as file:
        return Ignore([line.partition("#")[0] for line in file], defaults=())
