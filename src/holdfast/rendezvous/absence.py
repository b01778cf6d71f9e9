"""How long a coordinator has been out of reach, and when that is told. Pure."""

from __future__ import annotations


class Absence:
    """A coordinator that cannot be reached: since when, whether that was told, and when to stop waiting."""

    def __init__(self) -> None:
        #: Since when the coordinator is out of reach; None while it is there.
        self.since: float | None = None
        #: In which state of the member it was said last; None while it was not.
        self._told_in: str | None = None

    def begin(self, now: float) -> None:
        """Note that the coordinator is out of reach; it may have been for a while."""
        if self.since is None:
            self.since = now

    def end(self, now: float) -> float | None:
        """Note that the coordinator is there; returns how long it was away where that had been said."""
        since, self.since = self.since, None
        told_in, self._told_in = self._told_in, None
        return now - since if since is not None and told_in is not None else None

    def due(self, after_s: float) -> float | None:
        """Say from when on an absence that lasts should be told, or None if it was."""
        return self.since + after_s if self.since is not None and self._told_in is None else None

    def tell(self, state: str, now: float, after_s: float) -> bool:
        """Return whether the absence is to be told now: once it lasts, and again in every other state."""
        if self.since is None or now < self.since + after_s or self._told_in == state:
            return False
        self._told_in = state
        return True
