"""How a simulation ends before its time: a failed check, or a limit that docs/ARCHITECTURE.md tells of."""

from __future__ import annotations


class Violation(Exception):
    """Something happened that must never happen, or did not happen that must."""

    def __init__(self, check: str, sentence: str) -> None:
        super().__init__(f"{check}: {sentence}")
        self.check = check
        self.sentence = sentence


class KnownLimit(Exception):
    """A simulation has come to where nothing is promised any more; it ends there, and has not failed."""
