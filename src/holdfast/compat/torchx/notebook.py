"""A workspace that is written cell by cell: `%%workspacefile train.py` in a notebook puts the cell into it."""

from __future__ import annotations

import atexit
import sys
import tempfile
from functools import cache
from pathlib import Path


def get_workspace() -> str:
    """Return the notebook's workspace, a folder that lasts as long as this process."""
    return f"file://{_folder().name}"


def workspacefile(line: str, cell: str) -> None:
    """Write a cell to the file of the workspace that the first line names."""
    path = Path(_folder().name) / line.strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(cell)
    print(f"Added {line} to workspace {get_workspace()}")


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="holdfast-notebook-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return folder


def _register() -> None:
    """Make it a magic of the notebook that imports this module; elsewhere it is only a function."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.register_magic_function(workspacefile, "cell")


_register()
