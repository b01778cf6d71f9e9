"""A file of whole lines that may have several writers and may lose any of them at any time."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.home import expand


class LineFile:
    """Appends lines to a file; each is written at once, so lines of several processes do not mix.

    A line that was torn by a crash or a full disk stands alone: the next one begins on a line of its own. Raises
    `OSError`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = expand(path).absolute()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._torn = self._ends_torn()

    def append(self, line: bytes) -> int:
        """Write one line without its end, and return how many bytes were written."""
        rest = b"\n" + line + b"\n" if self._torn else line + b"\n"
        total = len(rest)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
            self._torn = True
        self._torn = False
        return total

    @property
    def size(self) -> int:
        """How many bytes the file has; 0 for what is no regular file."""
        status = os.fstat(self._descriptor)
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _ends_torn(self) -> bool:
        size = self.size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
