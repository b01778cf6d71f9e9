"""When to save: every so many steps, or every so many minutes. Pure."""

from __future__ import annotations

from holdfast.errors import UsageError


class Every:
    """Says when a checkpoint is due: after so many steps, or so many minutes, whichever comes first.

    Steps are the same on every worker; minutes are not. Where each worker saves a shard of its own, let one of them
    ask and tell the others, or count in steps.
    """

    def __init__(self, steps: int | None = None, minutes: float | None = None) -> None:
        if (steps is None and minutes is None) or (steps is not None and steps < 1):
            raise UsageError("say how often to save: Every(steps=100), Every(minutes=5), or both")
        self.steps = steps
        self.minutes = minutes
        self._step: int | None = None
        self._at: float | None = None

    def is_due(self, step: int, now: float) -> bool:
        """Say whether a checkpoint of this step should be saved; the first one asked about begins the count."""
        if self._step is None or self._at is None:
            self._step, self._at = step, now
            return False
        if self.steps is not None and step // self.steps > self._step // self.steps:
            return True
        return self.minutes is not None and now - self._at >= self.minutes * 60

    def saved(self, step: int, now: float) -> None:
        """Begin to count anew."""
        self._step, self._at = step, now
