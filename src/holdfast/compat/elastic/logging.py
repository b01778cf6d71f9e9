"""TorchElastic's `utils.logging`: loggers whose level comes from `LOGLEVEL`, which is WARNING by default."""

from __future__ import annotations

import inspect
import logging
import os

__all__ = ["get_log_level", "get_logger"]


def get_log_level() -> str:
    """The level by which TorchElastic's loggers are made."""
    return "WARNING"


def get_logger(name: str | None = None) -> logging.Logger:
    """Return a logger that writes to stderr; by default it has the name of the module that asks."""
    if name is None:
        caller = inspect.stack()[1].frame
        name = str(caller.f_globals.get("__name__", "holdfast"))
    logger = logging.getLogger(name)
    logger.setLevel(os.environ.get("LOGLEVEL", get_log_level()))
    return logger
