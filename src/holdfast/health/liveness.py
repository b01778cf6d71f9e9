"""Liveness: when each part of the agent last moved, and whether that is recent enough. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """One part of the agent that must keep moving."""

    name: str
    #: Monotonic seconds: one clock for all processes of a host.
    moved_at: float
    #: Why that is unknown; empty if it is known.
    trouble: str = ""


class Liveness(NamedTuple):
    """All parts of the agent, and how long each may go without moving."""

    parts: tuple[Part, ...]
    timeout_s: float
    #: Whether the agent's process is stopped, as by SIGSTOP; looked up only where something is wrong.
    stopped: bool = False

    def trouble(self, now: float) -> str:
        """Return a sentence that names the parts that stopped moving; empty while all of them move."""
        found = [each for each in (self._trouble_of(part, now) for part in self.parts) if each]
        if found and self.stopped:
            found.append("the agent's process is stopped")
        return "; ".join(found)

    def sentence(self, now: float) -> str:
        """Return a sentence about the health of the agent."""
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
