"""Lines of text, for schedulers whose logs come in pieces or lie in a file that grows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import LogUnwrittenError

if TYPE_CHECKING:
    from holdfast.schedulers.api import Scheduler

READ_CHARS = 64 * 1024
#: How long to wait before a file, or the job that writes it, is looked at again.
PAUSE_S = 0.1


def split_lines(text: str) -> list[str]:
    r"""Split at newlines, and only there; every line keeps its own."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def split_lines_iterator(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of each piece; what is torn between two pieces stays torn."""
    for chunk in chunks:
        yield from split_lines(chunk)


def filter_regex(regex: str, data: Iterable[str]) -> Iterator[str]:
    """Yield the lines in which an expression is found."""
    wanted = re.compile(regex)
    return (line for line in data if wanted.search(line))


class LogIterator:
    """Yields what a file holds and, as long as its job runs, what is added to it; in pieces, not in lines.

    Made for schedulers whose jobs write into files on a shared disk: `split_lines_iterator` makes lines of it.
    """

    def __init__(self, app_id: str, log_file: str, scheduler: Scheduler[Any], should_tail: bool = True) -> None:
        self._app_id = app_id
        self._log_file = Path(log_file)
        self._scheduler = scheduler
        self._should_tail = should_tail
        self._pieces = self._read()

    def __iter__(self) -> Iterator[str]:
        self._pieces = self._read()
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def _read(self) -> Iterator[str]:
        # The job is looked at before the file: what is in the file then is all there will be.
        ended = self._has_ended()
        while not self._log_file.is_file():
            if ended:
                raise LogUnwrittenError(f"app: {self._app_id} finished without writing: {self._log_file}")
            time.sleep(PAUSE_S)
            ended = self._has_ended()
        with self._log_file.open(newline="\n", errors="replace") as file:
            ended = self._has_ended() or not self._should_tail
            while True:
                piece = file.read(READ_CHARS)
                if piece:
                    yield piece
                elif ended:
                    return
                else:
                    time.sleep(PAUSE_S)
                    ended = self._has_ended()

    def _has_ended(self) -> bool:
        from holdfast.specs.states import is_terminal

        found = self._scheduler.describe(self._app_id)
        return found is None or is_terminal(found.state)
