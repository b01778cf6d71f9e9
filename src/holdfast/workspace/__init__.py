"""Workspaces: the code of a job, shipped to where it runs without building an image.

api       what a scheduler that ships code has: `WorkspaceMixin`
shipment  folders copied into a job's own folder; what has not changed since is not copied again
dir_workspace  folders copied to where a cluster's nodes see them; remote: walks one that lies elsewhere
ignore ●  which files stay behind
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.workspace.api import Workspace, WorkspaceMixin
    from holdfast.workspace.ignore import Ignore
    from holdfast.workspace.remote import walk_workspace
    from holdfast.workspace.shipment import Shipped, roots, ship, survey, walk

#: Each name and where it lives: most runs ship nothing, and should not pay for it.
_HOMES = {
    "Ignore": "ignore",
    "Shipped": "shipment",
    "Workspace": "api",
    "WorkspaceMixin": "api",
    "roots": "shipment",
    "ship": "shipment",
    "survey": "shipment",
    "walk": "shipment",
    "walk_workspace": "remote",
}

__all__ = [
    "Ignore",
    "Shipped",
    "Workspace",
    "WorkspaceMixin",
    "roots",
    "ship",
    "survey",
    "walk",
    "walk_workspace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
