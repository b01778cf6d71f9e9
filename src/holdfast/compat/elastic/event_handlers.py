"""TorchElastic's `events.handlers`: it has no way to add a destination, so programs put theirs into its table."""

from __future__ import annotations

import logging
from collections import UserDict

from holdfast.events import get_logging_handler, register

__all__ = ["get_logging_handler"]


class _LogHandlers(UserDict[str, logging.Handler]):
    """What is put in here becomes a destination of events; what is taken out leads to one."""

    def __setitem__(self, destination: str, handler: logging.Handler) -> None:
        register(destination, handler)
        super().__setitem__(destination, handler)

    def __missing__(self, destination: str) -> logging.Handler:
        return get_logging_handler(destination)


_log_handlers = _LogHandlers()
