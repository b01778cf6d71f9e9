"""A failed check."""

from __future__ import annotations


class Violation(Exception):
    """Something happened that must never happen, or did not happen that must."""

    def __init__(self, check: str, sentence: str) -> None:
        super().__init__(f"{check}: {sentence}")
        self.check = check
        self.sentence = sentence
