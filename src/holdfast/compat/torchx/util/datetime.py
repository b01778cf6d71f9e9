"""Times in the past."""

from __future__ import annotations

import time

_DAY_S = 24 * 3600


def get_past_epoch_time(days_past: int) -> int:
    """Return the time so many days ago, in seconds since 1970."""
    return int(time.time()) - days_past * _DAY_S
