"""Refusals: which refused connections are reported one by one, and which are only counted. Pure.

Any program that reaches the port can be refused a hundred thousand times. The first refusals of an address are reported
in full, since they usually are a person's mistake; the rest is summed up at growing intervals. Both the number of
reports and the memory are bounded, whatever arrives and from however many addresses.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

#: So many refusals of one address are reported in full, until it has been quiet for `QUIET_S`.
SINGLES_PER_ADDRESS = 3
#: So many refusals of all addresses together; one more for every `REFILL_S` that passes.
SINGLES_MAX = 20
REFILL_S = 3600.0
QUIET_S = 600.0
#: The first summary comes after this time, each further one after twice as long, while refusals go on.
SUMMARY_FIRST_S = 60.0
SUMMARY_LAST_S = 3600.0
#: Addresses and reasons that are told apart; the others are counted together.
ADDRESSES_MAX = 256
REASONS_MAX = 16


@dataclass(frozen=True, slots=True)
class Summary:
    """What was refused without a report of its own."""

    count: int
    addresses: int
    #: The address with most of them, and how many.
    address: str
    address_count: int
    reason: str
    seconds: float

    @property
    def sentence(self) -> str:
        """Say it to a person."""
        more = f"refused {self.count:,} more connection{'s' if self.count > 1 else ''}"
        when = f"in the last {self.seconds:.0f} s"
        if self.addresses == 1:
            where = f" from {self.address} {when}"
        else:
            where = f" from {self.addresses:,} addresses {when}, most ({self.address_count:,}) from {self.address}"
        return f"{more}{where}; most often: {self.reason}"


class Refusals:
    """Keeps count of refused connections; `now` is the monotonic clock of this host."""

    def __init__(self) -> None:
        self._tokens = float(SINGLES_MAX)
        self._filled_at = 0.0
        #: By address: how many were reported in full, and when the last one was refused.
        self._told: dict[str, tuple[int, float]] = {}
        self._held: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._held_since = 0.0
        self._interval_s = SUMMARY_FIRST_S
        self._last_at = 0.0

    def note(self, address: str, reason: str, now: float) -> bool:
        """Count a refusal; return whether it is to be reported in full."""
        if now - self._last_at > self._interval_s + QUIET_S:
            self._interval_s = SUMMARY_FIRST_S
        self._last_at = now
        self._tokens = min(self._tokens + (now - self._filled_at) / REFILL_S, float(SINGLES_MAX))
        self._filled_at = now
        told, last_at = self._told.pop(address, (0, now))
        if now - last_at > QUIET_S:
            told = 0
        is_single = told < SINGLES_PER_ADDRESS and self._tokens >= 1
        self._told[address] = (told + is_single, now)
        if len(self._told) > ADDRESSES_MAX:
            del self._told[next(iter(self._told))]  # the one that was refused the longest ago
        if is_single:
            self._tokens -= 1
            return True
        if not self._held:
            self._held_since = now
        _count(self._held, address, ADDRESSES_MAX)
        _count(self._reasons, reason, REASONS_MAX)
        return False

    def wakeup(self) -> float | None:
        """Return when a summary is due; None while there is nothing to sum up."""
        return self._held_since + self._interval_s if self._held else None

    def take_summary(self, now: float) -> Summary | None:
        """Return what was counted since the last summary and begin anew; None if that is nothing."""
        if not self._held:
            return None
        address, address_count = self._held.most_common(1)[0]
        reason = self._reasons.most_common(1)[0][0]
        summary = Summary(
            self._held.total(), len(self._held), address, address_count, reason, max(now - self._held_since, 1.0)
        )
        self._held.clear()
        self._reasons.clear()
        self._interval_s = min(2 * self._interval_s, SUMMARY_LAST_S)
        return summary


def _count(counter: Counter[str], name: str, names_max: int) -> None:
    counter[name if name in counter or len(counter) < names_max else "others"] += 1
