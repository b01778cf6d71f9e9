"""Vitals: when each part of the agent last moved, and whether that is recent enough. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """One part of the agent that must keep moving."""

    name: str
    #: This host's monotonic seconds; the same clock in every process of it.
    moved_at: float
    #: Why it cannot be said when it moved; empty where it can.
    trouble: str = ""


class Vitals(NamedTuple):
    """What is known of all parts, and the silence that each is allowed."""

    parts: tuple[Part, ...]
    timeout_s: float
    #: Whether the agent's process is stopped, as by SIGSTOP; only looked at where something is wrong.
    stopped: bool = False

    def trouble(self, now: float) -> str:
        """Say in a sentence what has stopped moving; empty while all is well."""
        found = [each for each in (self._trouble_of(part, now) for part in self.parts) if each]
        if found and self.stopped:
            found.append("the agent's process is stopped")
        return "; ".join(found)

    def sentence(self, now: float) -> str:
        """Say how the agent is."""
        if trouble := self.trouble(now):
            return trouble
        return "; ".join(f"{part.name} moved {_seconds(now - part.moved_at)} ago" for part in self.parts)

    def _trouble_of(self, part: Part, now: float) -> str:
        if part.trouble:
            return part.trouble
        silent_s = now - part.moved_at
        if silent_s <= self.timeout_s:
            return ""
        return f"{part.name} last moved {_seconds(silent_s)} ago, {self.timeout_s:g} s are allowed"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
