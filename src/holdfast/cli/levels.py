"""How much is logged: the variable `LOGLEVEL`."""

from __future__ import annotations

import logging
import os

from holdfast.errors import UsageError


def log_level(default: str = "") -> str:
    """Return the level that `LOGLEVEL` names, or the default; raises `UsageError`."""
    level = os.environ.get("LOGLEVEL", "").upper() or default
    if level and level not in logging.getLevelNamesMapping():
        raise UsageError(f"LOGLEVEL is '{level}' but must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL")
    return level
