"""Workspaces: the code of a job, shipped without building an image.

api       the interface of a scheduler that ships code: `WorkspaceMixin`
shipment  folders copied into a job's own folder; files that have not changed are not copied again
dir_workspace  folders copied to a folder that a cluster's nodes can read; walks workspaces of other file systems
ignore ●  which files are not shipped
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.workspace.api import Workspace as Workspace
    from holdfast.workspace.api import WorkspaceMixin as WorkspaceMixin
    from holdfast.workspace.dir_workspace import walk_workspace as walk_workspace
    from holdfast.workspace.ignore import Ignore as Ignore
    from holdfast.workspace.shipment import Shipped as Shipped
    from holdfast.workspace.shipment import roots as roots
    from holdfast.workspace.shipment import ship as ship
    from holdfast.workspace.shipment import survey as survey
    from holdfast.workspace.shipment import walk as walk
else:
    # Most runs ship nothing.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        api="Workspace WorkspaceMixin",
        ignore="Ignore",
        dir_workspace="walk_workspace",
        shipment="Shipped roots ship survey walk",
    )
