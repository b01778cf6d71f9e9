"""Reading logs: the lines of one replica, from disk, as they grow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.schedulers.replies import Stream

if TYPE_CHECKING:
    from holdfast.schedulers.api import LogQuery

READ_BYTES = 1024 * 1024
#: The letters of the lines that each stream shows; `h` are notes of Holdfast, shown with each stream.
LETTERS = {Stream.STDOUT: "oh", Stream.STDERR: "eh", Stream.COMBINED: "oeh"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are wanted; times are seconds since 1970."""

    stream: Stream = Stream.COMBINED
    pattern: re.Pattern[str] | None = None
    since: float = float("-inf")
    until: float = float("inf")

    def takes(self, at: float, letter: str, text: str) -> bool:
        """Whether a line is wanted."""
        return (
            self.since <= at <= self.until
            and letter in LETTERS[self.stream]
            and (self.pattern is None or self.pattern.search(text) is not None)
        )


def wanted(query: LogQuery) -> Wanted:
    """Return which lines a query asks for; raises `UsageError`."""
    return Wanted(
        Stream(query.streams) if query.streams else Stream.COMBINED,
        compile_pattern(query.regex),
        query.since.timestamp() if query.since else float("-inf"),
        query.until.timestamp() if query.until else float("inf"),
    )


def compile_pattern(regex: str | None) -> re.Pattern[str] | None:
    """Read a regular expression; raises `UsageError`."""
    try:
        return re.compile(regex) if regex else None
    except re.error as error:
        raise UsageError(f"'{regex}' is not a regular expression: {error}") from None


class Reader:
    """Reads a combined log as far as it goes, again and again; a line counts once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Return the next lines, or None if there is nothing more for now."""
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
        data = os.read(self._fd, READ_BYTES)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def last(self) -> list[bytes]:
        """Return what is left of a line whose writer was killed."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def follow(
    path: Path,
    wanted: Wanted,
    *,
    ended: Callable[[], bool],
    wait: Callable[[float], None] | None,
    now: Callable[[], float],
) -> Iterator[tuple[float, str]]:
    """Yield the wanted lines of a combined log, each with its time.

    With `wait`, which waits for more for at most that many seconds, it goes on until `ended` has said that no more can
    come and all is read. The order matters: what is read after the end has been seen is all there will be.
    """
    reader = Reader(path)
    idle = 0
    try:
        while True:
            is_over = ended() or now() > wanted.until
            lines = reader.read()
            if lines is None and (is_over or wait is None):
                lines = reader.last() if is_over else []
                yield from _pick(lines, wanted)
                return
            if lines is None:
                assert wait is not None
                wait(min(0.01 * 2**idle, 0.2))
                idle = min(idle + 1, 10)
                continue
            idle = 0
            yield from _pick(lines, wanted)
    finally:
        reader.close()


def _pick(lines: list[bytes], wanted: Wanted) -> Iterator[tuple[float, str]]:
    for line in lines:
        at, letter, text = parse_line(line)
        if wanted.takes(at, letter, text):
            yield at, text


def parse_line(line: bytes) -> tuple[float, str, str]:
    """Split a line of a combined log into time, stream and text; a damaged one is shown as it is."""
    try:
        at, letter, text = line.split(b" ", 2)
        return float(at), letter.decode("ascii"), text.decode("utf-8", "backslashreplace")
    except ValueError:
        return 0.0, "h", line.decode("utf-8", "backslashreplace")
