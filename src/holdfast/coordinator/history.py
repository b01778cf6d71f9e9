"""The history of a run: what happened to all of it, numbered, so that every node can write down the same. Pure.

News costs no message of its own: the latest facts ride on whatever is said to the nodes when a round is sealed, broken
or closed, and a node that missed some shows it by the number in its next beat and is told in the answer. What only a
coordinator knew that has died is lost; its successor goes on with the next number that no node has heard.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast.coordinator.messages import ToldFact

#: Facts that a node that comes late can still be told.
FACTS_KEPT_MAX = 256
#: Facts that are told again with one beat.
FACTS_RETOLD_MAX = 32
#: Facts that ride on a message to all: what made it necessary.
FACTS_RIDING_MAX = 4
SENTENCE_CHARS_MAX = 2000


class History:
    """The latest facts of one run."""

    def __init__(self) -> None:
        self.last = 0
        self._kept: deque[ToldFact] = deque(maxlen=FACTS_KEPT_MAX)

    def add(self, kind: str, sentence: str, data: dict[str, Any], level: int, time: float) -> ToldFact:
        """Give a fact its number and keep it."""
        self.last += 1
        told = ToldFact(self.last, time, kind, sentence[:SENTENCE_CHARS_MAX], level, data)
        self._kept.append(told)
        return told

    def latest(self) -> tuple[ToldFact, ...]:
        """Return what everybody should hear now."""
        return tuple(self._kept)[-FACTS_RIDING_MAX:]

    def since(self, known: int) -> tuple[ToldFact, ...]:
        """Return what a node that knows of all up to `known` has missed, as much as goes into one message."""
        if known >= self.last:
            return ()
        return tuple(told for told in self._kept if told.number > known)[:FACTS_RETOLD_MAX]

    def catch_up(self, known: int) -> None:
        """Never use a number that a node has heard already, from a coordinator before this one."""
        self.last = max(self.last, known)
