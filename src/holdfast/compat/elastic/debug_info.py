"""TorchElastic's `timer.debug_info_logging`: log messages about expired timers."""

from __future__ import annotations

import logging

from holdfast.compat.elastic.logging import get_logger

__all__ = ["get_logger", "log_debug_info_for_expired_timers"]


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Log the scopes that expired, by process."""
    if expired_timers:
        logging.getLogger(__name__).info("Timers expired for run:[%s] [%s].", run_id, expired_timers)
