"""Times as people write them on a command line."""

from __future__ import annotations

from datetime import datetime

from holdfast.errors import UsageError
from holdfast.quantities import parse_duration


def parse_time(text: str, now: float, latest: float) -> float:
    """Read a time: `10m` ago, `14:05[:30]` on the day of `latest`, or `2026-01-31[T14:05]`; by this host's clock."""
    text = text.strip()
    try:
        return now - parse_duration(text)
    except UsageError:
        pass
    day = datetime.fromtimestamp(latest).date().isoformat()
    hour, colon, rest = text.partition(":")
    on_that_day = bool(colon) and hour.isdigit()
    try:
        when = datetime.fromisoformat(f"{day}T{hour:0>2}:{rest}" if on_that_day else text)
    except ValueError:
        raise UsageError(f"'{text}' is not a time: write 10m for ten minutes ago, 14:05, or 2026-01-31T14:05") from None
    return when.timestamp()
