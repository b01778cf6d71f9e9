"""From journals to a story: the lines of several nodes in one order, filtered and formatted. Pure.

Clocks of different hosts are compared only where that cannot be avoided. Cluster facts are ordered by their numbers;
each appears once, even if several nodes wrote it. A node's own facts stay between the cluster facts before and after
them in its journal, whatever its clock says; only if the clocks agree may one come after a cluster fact that reached
the node a moment late. Within these limits times decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from typing import Any

from holdfast.events.entry import CLOSED, Entry, Line, Sieve
from holdfast.facts import LEVELS
from holdfast.printable import printable

#: If a node's clock is ahead by no more than this, the cluster fact is taken to have reached it late.
NEWS_TAKES_S_MAX = 0.1
#: Data that names the node a cluster fact is about.
_NODE_KEYS = ("host", "node")
_LENGTH = re.compile(r"\d (ms|s|min|h)\b")
_MARKS = {"warning": "!", "error": "!!"}


@dataclass(frozen=True, slots=True)
class Told:
    """One line of the story: the entry, its text, and the round during which it happened."""

    entry: Entry
    text: bytes
    round: int | None


@dataclass(slots=True)
class _Position:
    """How far one journal is merged."""

    number: int = -1
    #: No later line of this journal comes before this time in the story.
    time: float = 0.0
    round: int | None = None


class Merger:
    """Puts the lines of several journals in one order; `merge` takes further lines of the same journals later."""

    def __init__(self) -> None:
        self._sieve = Sieve()
        self._positions: dict[str, _Position] = {}
        self._cluster_time = 0.0

    def merge(self, journals: Mapping[str, Sequence[Line]]) -> list[Told]:
        """Return the new lines of all journals, by the journals' names, as one story."""
        times = self._cluster_times(journals.values())
        keyed = []
        for name, lines in journals.items():
            position = self._positions.setdefault(name, _Position())
            for line, until in zip(lines, _next_times(lines, times), strict=True):
                number = line.entry.number
                _advance(position, line.entry, times[number] if number is not None else until)
                if number is None:
                    keyed.append(((position.time, position.number, True), _told(line, position)))
                elif self._sieve.lets_through(line.entry.kind, line.entry.sentence, number):
                    keyed.append(((times[number], number, False), _told(line, position)))
        keyed.sort(key=lambda pair: pair[0])  # stable: lines of one journal keep their order
        return [told for _, told in keyed]

    def _cluster_times(self, journals: Iterable[Sequence[Line]]) -> dict[int, float]:
        """Return a time for each number; a later number never has an earlier time."""
        times: dict[int, float] = {}
        for lines in journals:
            times.update({line.entry.number: line.entry.time for line in lines if line.entry.number is not None})
        for number in sorted(times):
            self._cluster_time = times[number] = max(times[number], self._cluster_time)
        return times


def _next_times(lines: Sequence[Line], times: Mapping[int, float]) -> list[float]:
    """Return for each line the time of the next cluster fact in its journal."""
    found, until = [], inf
    for line in reversed(lines):
        found.append(until)
        if line.entry.number is not None:
            until = times[line.entry.number]
    return found[::-1]


def _advance(position: _Position, entry: Entry, until: float) -> None:
    """Move on to an entry: a cluster fact is at `until`, any other not much later than that."""
    if entry.number is not None:
        position.number = max(position.number, entry.number)
        position.time = max(position.time, until)
    else:
        position.time = max(position.time, entry.time if entry.time <= until + NEWS_TAKES_S_MAX else until)
    round_ = entry.data.get("round")
    if isinstance(round_, int) and not isinstance(round_, bool):
        position.round = round_


def _told(line: Line, position: _Position) -> Told:
    return Told(line.entry, line.text, position.round)


@dataclass(frozen=True, slots=True)
class Filters:
    """Which lines the user wants to see; a line must pass every filter that is set."""

    kinds: tuple[str, ...] = ()
    level: str = "debug"
    nodes: tuple[str, ...] = ()
    rounds: frozenset[int] = frozenset()
    since: float | None = None
    until: float | None = None
    grep: re.Pattern[str] | None = None

    def let_through(self, told: Told) -> bool:
        """Whether to show a line."""
        entry = told.entry
        if entry.kind == CLOSED and not self.kinds:
            return False  # it is about the file and not about the run
        return (
            (not self.kinds or any(fnmatchcase(entry.kind, kind) for kind in self.kinds))
            and LEVELS.get(entry.level, 0) >= LEVELS[self.level]
            and (not self.nodes or any(_is_about(entry, node) for node in self.nodes))
            and (not self.rounds or told.round in self.rounds)
            and (self.since is None or entry.time >= self.since)
            and (self.until is None or entry.time <= self.until)
            and (self.grep is None or self.grep.search(entry.sentence) is not None)
        )


def _is_about(entry: Entry, node: str) -> bool:
    names = [entry.host, entry.node] if entry.number is None else _named_in(entry.data)
    return any(fnmatchcase(str(name), node) for name in names if name)


def _named_in(data: Mapping[str, Any]) -> list[Any]:
    """Return the nodes that a cluster fact is about: the one that left or failed, and those that joined."""
    failure, joined = data.get("failure"), data.get("joined")
    return [
        *(data.get(key) for key in _NODE_KEYS),
        *([failure.get("host")] if isinstance(failure, dict) else []),
        *(joined if isinstance(joined, list) else []),
    ]


class Columns:
    """Formats lines in columns: time, mark, round, node, sentence."""

    def __init__(self, clock: Callable[[float], str], label: Callable[[Entry], str]) -> None:
        self._clock = clock
        self._label = label
        self._label_width = 0

    def make_room(self, story: Iterable[Told]) -> None:
        """Make the column of nodes wide enough for these lines."""
        widths = (len(_printable(self._label(told.entry))) for told in story)
        self._label_width = max(self._label_width, *widths, 0)

    def tell(self, told: Told) -> str:
        """Return the formatted line, or several if the sentence has several."""
        entry = told.entry
        head = f"{self._clock(entry.time):>10} {_MARKS.get(entry.level, ''):>2} {_round(told):>4}  {self._who(entry)}"
        first, *more = _printable(entry.sentence.rstrip()).split("\n")
        lines = [f"{head}{first}{_took(entry)}", *(" " * len(head) + line for line in more)]
        return "\n".join(line.rstrip() for line in lines)

    def _who(self, entry: Entry) -> str:
        label = _printable(self._label(entry))
        self._label_width = max(self._label_width, len(label))  # a node may have joined while we follow
        return f"{label:{self._label_width}}  " if self._label_width else ""


def _printable(text: str) -> str:
    """Remove control characters and tabs, which would break the columns."""
    return printable(text).replace("\t", " ")


def after_start(start: float) -> Callable[[float], str]:
    """Return a function that formats a time as the time since `start`: `+3.2s`, `+4m05.0s`, `+1h02m`."""
    return lambda when: ("-" if when < start else "+") + length_of(abs(when - start))


def length_of(seconds: float) -> str:
    """Format a length of time: `350ms`, `3.2s`, `4m05s`, `1h02m`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def _round(told: Told) -> str:
    return "" if told.round is None else f"r{told.round}"


def _took(entry: Entry) -> str:
    """Return how long it took, if the sentence does not say that itself."""
    duration = entry.data.get("duration_ms")
    if not isinstance(duration, int | float) or isinstance(duration, bool) or _LENGTH.search(entry.sentence):
        return ""
    return f" ({length_of(duration / 1000)})"
