"""Where the runs of this user leave things on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what this user's runs leave on this host."""
    base = environ.get("HOLDFAST_HOME")
    if base:
        return Path(base)
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "holdfast"
