"""Workspaces: the code of a job, shipped to where it runs without building an image.

api       what a scheduler that ships code has: `WorkspaceMixin`
shipment  folders copied into a job's own folder; what has not changed since is not copied again
dir_workspace  folders copied to where a cluster's nodes see them; remote: walks one that lies elsewhere
ignore ●  which files stay behind
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.workspace.api import Workspace as Workspace
    from holdfast.workspace.api import WorkspaceMixin as WorkspaceMixin
    from holdfast.workspace.ignore import Ignore as Ignore
    from holdfast.workspace.remote import walk_workspace as walk_workspace
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
        remote="walk_workspace",
        shipment="Shipped roots ship survey walk",
    )
