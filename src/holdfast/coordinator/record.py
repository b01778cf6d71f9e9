"""What a coordinator must still know after a restart. Pure."""

from __future__ import annotations

import msgspec

from holdfast.coordinator.messages import RoundId, RunSettings
from holdfast.coordinator.ranks import Seat


class RunRecord(msgspec.Struct, frozen=True):
    """The lasting facts of one run: small, and written before anybody acts on them."""

    version: int = 1
    last_number: int = 0
    restarts_used: int = 0
    failures_without_progress: int = 0
    closed: str | None = None
    failed: bool = False
    settings: RunSettings | None = None
    #: The last round; `broken` says why it is over, if it is.
    round: RoundId | None = None
    #: Its members in rank order; none while they are still being learned.
    seats: list[Seat] = []
    broken: str | None = None
    #: How many of its members are worth waiting for: those that were live.
    awaited: int = 0
    #: Whether the broken round's failures are in `restarts_used` already.
    charged: bool = False
    #: The number of the last fact in the run's history.
    facts: int = 0
