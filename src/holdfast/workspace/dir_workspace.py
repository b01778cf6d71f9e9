"""Workspaces that are folders: copied to where the job's nodes see them, which becomes the role's image."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.workspace.api import Workspace, WorkspaceMixin
from holdfast.workspace.remote import walk_workspace
from holdfast.workspace.shipment import ship

if TYPE_CHECKING:
    from holdfast.specs import CfgVal, Role

__all__ = ["DirWorkspaceMixin", "TmpDirWorkspaceMixin", "WorkspaceMixin", "walk_workspace"]


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
    """Copies the workspace to a new folder among the temporary ones."""

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Copy the workspace, without what its ignore file names."""
        del cfg
        target = tempfile.mkdtemp(prefix="holdfast_workspace")
        ship(workspace, Path(target))
        role.image = target
