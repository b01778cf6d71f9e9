"""TorchElastic's `events.handlers`: it has no way to add a destination, so programs put theirs into its table."""

from __future__ import annotations

import logging
import os
from collections import UserDict
from typing import Any

from holdfast.events import Event, EventHandler, RdzvEvent, get_logging_handler, register
from holdfast.events.recording import RENDEZVOUS

__all__ = ["get_logging_handler"]


class _RendezvousLines(EventHandler):
    """Hands events of the rendezvous to a logging handler in TorchElastic's form."""

    def __init__(self, handler: logging.Handler) -> None:
        self._handler = handler

    def record(self, event: Event) -> None:
        fields: dict[str, Any] = dict(event.metadata)
        text = RdzvEvent(event.name, **fields).serialize() if "run_id" in fields else event.serialize()
        self._handler.handle(logging.LogRecord(_logger_name(RENDEZVOUS), logging.INFO, "", 0, text, None, None))


class _LogHandlers(UserDict[str, logging.Handler]):
    """What is put in here becomes a destination of events; what is taken out leads to one."""

    def __setitem__(self, destination: str, handler: logging.Handler) -> None:
        register(destination, _RendezvousLines(handler) if destination == RENDEZVOUS else handler)
        super().__setitem__(destination, handler)

    def __missing__(self, destination: str) -> logging.Handler:
        return get_logging_handler(destination)


_log_handlers = _LogHandlers()


def _get_or_create_logger(destination: str = "null") -> logging.Logger:
    """Return a logger whose messages go to a destination of events, and nowhere else."""
    logger = logging.getLogger(_logger_name(destination))
    if not logger.handlers:
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
        logger.propagate = False
        logger.addHandler(_log_handlers[destination])
    return logger


def _logger_name(destination: str) -> str:
    return f"torchelastic-events-{destination}"
