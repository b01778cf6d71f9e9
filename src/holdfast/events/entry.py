"""One line of a journal, and which facts become one. Pure.

A cluster fact (one with a number, its place in the history of the run) is written without the name of its writer, so
that its line is the same on every node.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.events.platform import RunContext
from holdfast.facts import Fact, level_name
from holdfast.text import clean, clean_data
from holdfast.typed import learned

VERSION = 1
#: How many cluster facts are remembered so that none is written twice; a coordinator repeats only recent ones.
NUMBERS_REMEMBERED_MAX = 100_000

#: The kinds of the journal's own lines: the last one of a closed journal, and that of a full one.
CLOSED, FULL = "journal_closed", "journal_full"
#: Facts that are written even to a full journal: people look for how a run ended.
ENDS = frozenset({"run_closed", "run_ended"})

#: The facts of an agent and its workers that an account of a run's time is made of.
TIMED = frozenset(
    {
        "agent_started",
        "rendezvous",
        "regrouped",
        "workers_started",
        "workers_replaced",
        "worker_failed",
        "round_lost",
        "steps",
        "workers_stopped",
        "run_ended",
    }
)

_COUNTDOWN = re.compile(r"\d+(\.\d+)? (s|seconds)\b")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a journal; `host`, `node` and `pid` are null for cluster facts."""

    version: int = VERSION
    time: float
    kind: str
    level: str = "info"
    sentence: str = ""
    data: dict[str, Any] = {}
    number: int | None = None
    run: str = ""
    host: str | None = None
    node: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """An entry and the text of its line."""

    entry: Entry
    text: bytes


def entry_of(fact: Fact, context: RunContext) -> Entry:
    """Return the entry for a fact."""
    local = fact.number is None
    return Entry(
        time=fact.timestamp,
        kind=fact.kind,
        level=level_name(fact.level),
        sentence=fact.sentence,
        data=fact.data,
        number=fact.number,
        run=context.run,
        host=context.host if local else None,
        node=context.node if local else None,
        pid=context.pid if local else None,
    )


def encode(entry: Entry) -> bytes:
    """Return an entry as one line of JSON, whatever its data holds."""
    try:
        return msgspec.json.encode(entry, enc_hook=str)
    except (TypeError, ValueError, RecursionError):  # a lone surrogate, or something that contains itself
        pass
    entry = msgspec.structs.replace(entry, **clean_data(msgspec.structs.asdict(entry)))
    try:
        return msgspec.json.encode(entry, enc_hook=lambda value: clean(str(value)))
    except (TypeError, ValueError, RecursionError):
        unwritable = {"unwritable": ascii(entry.data)}
        return msgspec.json.encode(msgspec.structs.replace(entry, data=unwritable))


def decode(line: bytes) -> Entry | None:
    """Read one line; None if it is cut short or not one of ours."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


class Sieve:
    """Decides which facts to write: a wait when its reason changes, each cluster fact once."""

    def __init__(self) -> None:
        self._waited_for = ""
        self._seen: OrderedDict[tuple[int, str, str], None] = OrderedDict()

    def lets_through(self, kind: str, sentence: str, number: int | None) -> bool:
        """Whether to write the next fact."""
        if kind == "waiting":
            told, self._waited_for = self._waited_for, _COUNTDOWN.sub("…", sentence)
            return told != self._waited_for
        self._waited_for = ""  # a wait after something happened is a new wait
        if number is None:
            return True
        # The sentence is part of the key: if a new coordinator numbers from the start again, nothing is lost.
        key = (number, kind, sentence)
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > NUMBERS_REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return True


_decoder = msgspec.json.Decoder(learned(Entry))
