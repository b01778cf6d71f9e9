"""Reading journals, also while they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.events.entry import Line, decode

CHUNK_BYTES = 1 << 20
#: A line longer than this is none of ours.
LINE_BYTES_MAX = 64 << 20


class JournalReader:
    """Reads a journal's lines, and later those that were added; what cannot be read is counted and skipped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.unreadable = 0
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[Line]:
        """Yield the whole lines since the last time; raises `OSError`."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while chunk := file.read(CHUNK_BYTES):
                self._offset += len(chunk)
                *texts, self._rest = (self._rest + chunk).split(b"\n")
                if len(self._rest) > LINE_BYTES_MAX:
                    self._rest = b""
                yield from self._lines(texts)

    @property
    def torn(self) -> bool:
        """Whether the file ends in the middle of a line: of a crash, or of one that is being written."""
        return bool(self._rest)

    def _lines(self, texts: list[bytes]) -> Iterator[Line]:
        for text in texts:
            entry = decode(text) if text.strip() else None
            if entry is not None:
                yield Line(entry, text)
            elif text.strip():
                self.unreadable += 1
