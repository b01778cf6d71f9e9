"""A terminal that a program draws on as a whole: its size, its keys, and what it was like before."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType

from holdfast.view.top import Line

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}
_KEYS = {b"\x1b[A": "up", b"\x1b[B": "down", b"k": "up", b"j": "down", b"q": "quit", b"\x03": "quit", b"\x1b": "quit"}


class FullScreen:
    """The whole terminal while it is entered; afterwards it is as it was."""

    def __init__(self) -> None:
        self._colours = not os.environ.get("NO_COLOR")
        self._before: list[object] | None = None

    def __enter__(self) -> FullScreen:
        with contextlib.suppress(termios.error):  # stdin is no terminal: then there are no keys
            self._before = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del kind, error, traceback
        if self._before is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stdout.write("\x1b[?25h\x1b[?1049l")
            sys.stdout.flush()

    @property
    def size(self) -> tuple[int, int]:
        """Its columns and lines."""
        return shutil.get_terminal_size()

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines in place of what was there, without flicker."""
        text = "\x1b[K\r\n".join("".join(self._styled(*piece) for piece in line) for line in lines)
        sys.stdout.write(f"\x1b[H{text}\x1b[K\x1b[J")
        sys.stdout.flush()

    def wait_key(self, timeout_s: float) -> str:
        """Wait for a key; returns `up`, `down`, `quit`, or nothing where the time is over or the key means nothing."""
        if self._before is None:
            select.select([], [], [], timeout_s)
            return ""
        if not select.select([sys.stdin.fileno()], [], [], timeout_s)[0]:
            return ""
        typed = os.read(sys.stdin.fileno(), 32)
        return "quit" if not typed else _KEYS.get(typed, "")

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and self._colours else text
