"""The output of a job's replicas on one screen: each line whole, behind the name of who wrote it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from holdfast.runner.api import Runner
from holdfast.specs import AppDef

#: What prefixes are painted with, one after the other.
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95)
#: Threads that follow; a job with more replicas has its first ones followed.
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
    """Whether colours are welcome there."""
    return out.isatty() and not os.environ.get("NO_COLOR")


class LogScreen:
    """Writes lines of several replicas to one place; a line of one is never torn by that of another.

    Use it as a context manager: nothing is written after its end, whatever still comes.
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

    def start(self, **options: Any) -> None:
        """Begin to follow every replica; options are those of `Runner.log_lines`, and `lines`."""
        if len(self._replicas) > FOLLOWED_MAX:
            self._out.write(f"holdfast: only the first {FOLLOWED_MAX} of {len(self._replicas)} replicas are followed\n")
        for who in self._replicas[:FOLLOWED_MAX]:
            thread = threading.Thread(target=self._follow, args=(who, options), name=f"log {who}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def wait_end(self, timeout_s: float | None = None) -> None:
        """Wait until nothing more can come; raises what made it end early."""
        for thread in self._threads:
            thread.join(timeout_s)
        if self._error is not None:
            raise self._error

    def show(self, **options: Any) -> None:
        """Write what is there now, replica after replica."""
        for who in self._replicas:
            self._write(who, self._lines(who, options))

    def _follow(self, who: Who, options: dict[str, Any]) -> None:
        try:
            self._write(who, self._lines(who, {**options, "should_tail": True}), flush=True)
        except Exception as error:  # noqa: BLE001 - raised again where the others are waited for
            self._error = self._error or error

    def _lines(self, who: Who, options: dict[str, Any]) -> Iterable[str]:
        options = dict(options)
        lines = options.pop("lines", None)
        if lines is None:
            return self._runner.log_lines(self._handle, who.role, who.id, **options)
        if not options.get("should_tail"):
            return deque(self._runner.log_lines(self._handle, who.role, who.id, **options), maxlen=lines)
        # A log only grows, so the lines that are there now are the first that a tail will yield.
        there = sum(
            1 for _ in self._runner.log_lines(self._handle, who.role, who.id, **{**options, "should_tail": False})
        )
        tail = enumerate(self._runner.log_lines(self._handle, who.role, who.id, **options))
        return (line for number, line in tail if number >= there - lines)

    def _write(self, who: Who, lines: Iterable[str], *, flush: bool = False) -> None:
        prefix = self._prefixes[who]
        for line in lines:
            with self._lock:
                if self._closed:
                    return
                self._out.write(f"{prefix}{line.rstrip()}\n")
                if flush:
                    self._out.flush()


def last_lines(runner: Runner, handle: str, who: Who, count: int) -> list[str]:
    """Return the last lines of a replica; none where the scheduler cannot tell."""
    try:
        return [line.rstrip() for line in deque(runner.log_lines(handle, who.role, who.id), maxlen=count)]
    except Exception:  # noqa: BLE001 - this is the story of a failure; a second one would only hide it
        return []
