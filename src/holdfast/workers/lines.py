"""Lines: how a stream of bytes becomes whole lines, which of them are kept, and the prefix of each.

Pure: bytes in, lines out. Memory is bounded whatever a worker writes.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A line longer than this is cut into several, so that no worker can make the agent hold more.
LINE_BYTES_MAX = 64 * 1024
#: How many last lines are kept for the report, and how much of each.
TAIL_LINES_MAX = 50
TAIL_LINE_CHARS_MAX = 2000

_END = re.compile(rb"[\r\n]")


class LineCutter:
    """Cuts a stream into lines without their ends.

    A carriage return ends a line too, as progress bars mean it to; one that is followed by a newline counts
    once. An empty piece between two carriage returns is dropped.
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._max = line_bytes_max
        self._rest = b""  # never longer than self._max, holds no line end
        self._after_return = False  # the last byte seen was \r: a following \n belongs to it

    def feed(self, data: bytes) -> list[bytes]:
        """Take more bytes and return the lines that are now whole."""
        lines: list[bytes] = []
        start = 0
        for match in _END.finditer(data):
            index = match.start()
            piece = self._rest + data[start:index]
            is_return = data[index] == 0x0D
            joined = not is_return and self._after_return and index == start and not self._rest
            start = index + 1
            self._rest = b""
            self._after_return = is_return
            if not joined and (piece or not is_return):
                lines.extend(self._pieces(piece))
        if start < len(data):
            self._after_return = False
            self._rest += data[start:]
            if len(self._rest) > self._max:
                whole = len(self._rest) - len(self._rest) % self._max
                lines.extend(self._pieces(self._rest[:whole]))
                self._rest = self._rest[whole:]
        return lines

    @property
    def rest(self) -> bytes:
        """The beginning of a line whose end has not come yet."""
        return self._rest

    def flush(self) -> list[bytes]:
        """Return what is left without a line end, as the last line."""
        rest, self._rest = self._rest, b""
        return self._pieces(rest) if rest else []

    def _pieces(self, line: bytes) -> list[bytes]:
        if len(line) <= self._max:
            return [line]
        return [line[at : at + self._max] for at in range(0, len(line), self._max)]


class Tail:
    """The last lines of a stream, as text a person can read."""

    def __init__(self, lines_max: int = TAIL_LINES_MAX) -> None:
        self._lines: deque[bytes] = deque(maxlen=lines_max)

    def add(self, lines: Sequence[bytes]) -> None:
        """Remember these lines, and forget the oldest beyond the limit."""
        self._lines.extend(line[: TAIL_LINE_CHARS_MAX * 4] for line in lines)

    def text(self) -> tuple[str, ...]:
        """Return the lines that are remembered, oldest first."""
        return tuple(readable(line) for line in tuple(self._lines))


def readable(line: bytes) -> str:
    """Turn any bytes into printable text of limited length."""
    text = line.decode("utf-8", "backslashreplace")[:TAIL_LINE_CHARS_MAX]
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in text)


def last_lines(data: bytes, lines_max: int = TAIL_LINES_MAX) -> tuple[str, ...]:
    """Return the last lines of some bytes, the unterminated one included."""
    cutter, tail = LineCutter(), Tail(lines_max)
    tail.add(cutter.feed(data))
    tail.add(cutter.flush())
    return tail.text()


def matches(line: bytes, filters: Sequence[bytes]) -> bool:
    """Whether the line contains any of the given pieces; with none given, nothing matches."""
    return any(piece in line for piece in filters)


def render_prefix(template: str, values: Mapping[str, object]) -> str:
    """Fill `${role_name}`, `${local_rank}`, `${rank}`, `${hostname}` and whatever else `values` holds.

    Unknown names stay as they are, so that a spelling mistake shows.
    """
    return re.sub(
        r"\$\{(\w+)\}|\$(\w+)",
        lambda found: str(values.get(found[1] or found[2], found[0])),
        template,
    )
