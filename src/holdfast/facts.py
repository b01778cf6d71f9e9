"""A fact: something that happened, recorded once, from which logs, events, metrics and the dashboard are made."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.printable import printable
from holdfast.text import clean, clean_data

_log = logging.getLogger("holdfast")

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}

Listener = Callable[["Fact"], None]

#: How many distinct unexpected exceptions are counted; with one more the counts start again.
UNEXPECTED_MAX = 1000
TRACEBACK_CHARS_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that happened: its kind, the sentence a person reads, and the same as data."""

    kind: str
    sentence: str
    data: dict[str, Any] = field(default_factory=dict)
    level: int = INFO
    #: The wall clock of the host where it happened, for people to read; filled in when the fact is published.
    timestamp: float = 0.0
    #: Its place in the history of the run, the same on every node; None for a fact of this process alone.
    number: int | None = None


def level_name(level: int) -> str:
    """Name a level, as in `warning`."""
    return next((name for name, least in reversed(LEVELS.items()) if level >= least), "debug")


class FactBook:
    """Hands each fact to every listener.

    A listener that raises is reported once by name and is still called: telemetry must never disturb the job.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = [_write_log]
        self._reported: set[int] = set()
        #: How often each unexpected exception has come, by where it was caught and what it says.
        self._unexpected: dict[tuple[str, str], int] = {}

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every fact from now on; returns the function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def warn(self, kind: str, sentence: str, **data: Any) -> None:
        """Publish a warning: something that a person should look at."""
        self.publish(Fact(kind, sentence, data, WARNING))

    def unexpected(self, where: str, error: BaseException, then: str) -> None:
        """Publish an exception that no code expected, with its traceback; `then` says what happens now.

        For the edge of every thread and callback, where an exception would otherwise be lost. One that repeats is
        counted and reported at every doubling of the count.
        """
        key = (where, repr(error)[:200])
        if key not in self._unexpected and len(self._unexpected) >= UNEXPECTED_MAX:
            self._unexpected.clear()
        times = self._unexpected[key] = self._unexpected.get(key, 0) + 1
        if times & (times - 1):
            return
        again = f", {times} times now" if times > 1 else ""
        text = "".join(traceback.format_exception(error))[-TRACEBACK_CHARS_MAX:]
        sentence = f"internal error in {where}{again}: {error!r}; {then}. Please report this."
        data = {"where": where, "error": repr(error), "times": times, "traceback": text}
        self.publish(Fact("internal_error", f"{sentence}\n{text}".rstrip(), data, ERROR))

    def publish(self, fact: Fact) -> None:
        """Hand one fact, stamped with the time, to every listener."""
        fact = replace(
            fact,
            sentence=clean(fact.sentence),
            data=clean_data(fact.data),
            timestamp=fact.timestamp or time.time(),
        )
        for listener in tuple(self._listeners):
            try:
                listener(fact)
            except Exception:  # noqa: BLE001 - a user's listener may raise anything
                if id(listener) not in self._reported:
                    self._reported.add(id(listener))
                    _log.exception("the fact listener %r raised; it will not be reported again", listener)


def _write_log(fact: Fact) -> None:
    _log.log(fact.level, "%s", printable(fact.sentence))


#: The facts of this process.
facts = FactBook()
