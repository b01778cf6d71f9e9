"""The output of a job's replicas on one screen: whole lines, each with the name of its replica."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from holdfast.runner.api import Runner
from holdfast.schedulers.api import LogQuery
from holdfast.specs import AppDef

#: The colours of prefixes, in turn.
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95)
#: How many replicas are followed at most, each by a thread.
FOLLOWED_MAX = 512


class Who(NamedTuple):
    """One replica."""

    role: str
    id: int

    def __str__(self) -> str:
        return f"{self.role}/{self.id}"


def replicas_of(app: AppDef) -> list[Who]:
    """Return every replica of an app."""
    return [Who(role.name, number) for role in app.roles for number in range(role.num_replicas)]


def is_coloured(out: TextIO) -> bool:
    """Whether to write colours to this stream."""
    return out.isatty() and not os.environ.get("NO_COLOR")


class LogScreen:
    """Writes lines of several replicas to one stream; lines are never mixed.

    Use it as a context manager: nothing is written after its end.
    """

    def __init__(self, runner: Runner, handle: str, replicas: Sequence[Who], out: TextIO) -> None:
        self._runner = runner
        self._handle = handle
        self._replicas = replicas
        self._out = out
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._error: Exception | None = None
        self._closed = False
        width = max((len(str(who)) for who in replicas), default=0)
        paint = is_coloured(out)
        self._prefixes = {
            who: f"\x1b[{_COLOURS[place % len(_COLOURS)]}m{who!s:<{width}}\x1b[0m " if paint else f"{who!s:<{width}} "
            for place, who in enumerate(replicas)
        }

    def __enter__(self) -> LogScreen:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True

    def start(self, skip: Mapping[Who, int] | None = None, **options: Any) -> None:
        """Begin to follow every replica, but for the lines to skip; options are those of `Runner.log_lines`."""
        if len(self._replicas) > FOLLOWED_MAX:
            self._out.write(f"holdfast: only the first {FOLLOWED_MAX} of {len(self._replicas)} replicas are followed\n")
        for who in self._replicas[:FOLLOWED_MAX]:
            number = skip.get(who, 0) if skip else 0
            thread = threading.Thread(target=self._follow, args=(who, number, options), name=f"log {who}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait_end(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the output; raises the error that ended it early."""
        for thread in self._threads:
            thread.join(timeout_s)
        if self._error is not None:
            raise self._error

    def show(self, last: int | None = None, **options: Any) -> dict[Who, int]:
        """Write what is there now, or the `last` lines of each replica; returns how many lines each has.

        Lines of several replicas come in the order in which they were written, where the scheduler knows it.
        """
        counts = dict.fromkeys(self._replicas, 0)
        parts = [self._history(who, last, options, counts) for who in self._replicas]
        # Each replica's log is a file that is open meanwhile.
        merged = len(parts) <= FOLLOWED_MAX
        entries = heapq.merge(*parts, key=lambda entry: entry[0]) if merged else itertools.chain(*parts)
        for _, who, line in entries:
            self._write(who, line)
        return counts

    def _history(
        self, who: Who, last: int | None, options: dict[str, Any], counts: dict[Who, int]
    ) -> Iterator[tuple[float, Who, str]]:
        entries = self._runner.read_log(self._handle, LogQuery(who.role, who.id, **options))
        kept: deque[tuple[float, Who, str]] = deque(maxlen=last)
        for at, line in entries:
            counts[who] += 1
            if last is None:
                yield at, who, line
            else:
                kept.append((at, who, line))
        yield from kept

    def _follow(self, who: Who, skip: int, options: dict[str, Any]) -> None:
        try:
            lines = self._runner.log_lines(self._handle, who.role, who.id, should_tail=True, **options)
            for line in itertools.islice(lines, skip, None):
                if not self._write(who, line, flush=True):
                    return
        except Exception as error:  # noqa: BLE001 - raised again where the others are waited for
            self._error = self._error or error

    def _write(self, who: Who, line: str, *, flush: bool = False) -> bool:
        """Write one line; return whether the screen is still open."""
        with self._lock:
            if self._closed:
                return False
            self._out.write(f"{self._prefixes[who]}{line.rstrip()}\n")
            if flush:
                self._out.flush()
            return True


def last_lines(runner: Runner, handle: str, who: Who, count: int) -> list[str]:
    """Return the last lines of a replica; none if the scheduler has none."""
    try:
        return [line.rstrip() for line in deque(runner.log_lines(handle, who.role, who.id), maxlen=count)]
    except Exception:  # noqa: BLE001 - this is the story of a failure; a second one would only hide it
        return []
