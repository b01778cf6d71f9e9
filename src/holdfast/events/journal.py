"""The journal: everything that happened in a run, as JSON lines in its log folder.

A journal listens to the facts of its process and writes each as one line, an `Entry`. Files may be slow, full or gone:
a thread writes, the agent never waits, and the first error is reported. A crash may cut the last line short; readers
skip it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.events import entry as entries
from holdfast.events.entry import Entry, Line, Sieve
from holdfast.events.index import note_journal
from holdfast.events.platform import RunContext
from holdfast.facts import Fact, facts
from holdfast.outbox import CLOSE_TIMEOUT_S, Outbox
from holdfast.sinks import LineFile

FILE_NAME = "journal.jsonl"
JOURNAL_BYTES_MAX = 64 << 20
#: How much a full journal may still grow, for the lines that say how the run ended.
END_BYTES_MAX = 1 << 20
#: How many lines wait for a journal that has no file yet: the log folder is made with the first attempt.
LINES_WAITING_MAX = 10_000
READ_BYTES = 1 << 20
#: A longer line is not one of ours.
LINE_BYTES_MAX = 64 << 20


class Journal:
    """Writes every fact of this process that concerns a run; use as a context manager around the run.

    Without a path, lines wait until `place` names one.
    """

    def __init__(
        self, path: str | Path | None, context: RunContext, *, bytes_max: int = JOURNAL_BYTES_MAX, indexed: bool = True
    ) -> None:
        self.path = Path(path) if path is not None else None
        self._context = context
        self._bytes_max = bytes_max
        self._indexed = indexed
        self._sieve = Sieve()
        self._file: LineFile | None = None
        self._bytes = 0
        self._full = False
        self._waiting: list[Entry] = []
        self._process = os.getpid()
        self._stop: Callable[[], None] | None = None
        # A path opens the file: one thread does everything that may block, in order.
        self._outbox: Outbox[Fact | Path] = Outbox(
            f"the journal of run '{context.run}'", self._deliver, finish=self._end
        )
        if self.path is not None:
            self._outbox.put(self.path)

    def __enter__(self) -> Journal:
        self._stop = facts.listen(self._on_fact)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def place(self, path: str | Path) -> None:
        """Set the path of the file; only the first call counts."""
        if self.path is None:
            self.path = Path(path)
            self._outbox.put(self.path)

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until everything so far is written; return whether that took no longer than `timeout_s`."""
        return self._outbox.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop listening, write the rest, within `timeout_s`, and a last line that closes the journal."""
        if self._stop is not None:
            self._stop()
            self._stop = None
            self._outbox.close(timeout_s)

    def _on_fact(self, fact: Fact) -> None:
        if os.getpid() == self._process:  # not in a worker that was forked from this process
            self._outbox.put(fact)

    # -- in the outbox's thread ------------------------------------------------------------------------------------

    def _deliver(self, item: Fact | Path) -> None:
        if isinstance(item, Path):
            self._open(item)
        elif self._context.concerns(item) and self._sieve.lets_through(item.kind, item.sentence, item.number):
            self._write(entries.entry_of(item, self._context))

    def _open(self, path: Path) -> None:
        file = LineFile(path)
        self._bytes = file.size
        if self._bytes:
            # An agent that was started again continues the journal.
            for line in JournalReader(path).read():
                self._sieve.lets_through(line.entry.kind, line.entry.sentence, line.entry.number)
        self._file = file
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            self._write(entry)
        if self._indexed:
            self._note(file.path)

    def _write(self, entry: Entry) -> None:
        if self._file is None:
            if len(self._waiting) < LINES_WAITING_MAX:
                self._waiting.append(entry)
            return
        if self._full and entry.kind not in (*entries.ENDS, entries.CLOSED):
            return
        line = entries.encode(entry)
        if not self._full and self._bytes + len(line) + 1 > self._bytes_max:
            self._full = True
            self._write_line(entries.encode(self._own(entries.FULL, self._full_sentence())))
            self._write(entry)
        elif self._bytes + len(line) + 1 <= self._bytes_max + END_BYTES_MAX:
            self._write_line(line)

    def _write_line(self, line: bytes) -> None:
        assert self._file is not None
        self._bytes += self._file.append(line)

    def _end(self) -> None:
        if self._file is None:
            return
        try:
            self._write(self._own(entries.CLOSED, "the journal ends here"))
        finally:
            self._file.close()
            self._file = None

    def _own(self, kind: str, sentence: str) -> Entry:
        return entries.entry_of(Fact(kind, sentence, timestamp=time.time()), self._context)

    def _full_sentence(self) -> str:
        return f"the journal is full at {self._bytes_max} bytes; only how the run ends is still recorded"

    def _note(self, path: Path) -> None:
        try:
            note_journal(self._context.run, path, self._context.host)
        except (OSError, HoldfastError) as error:
            facts.warn(
                "journal_unlisted",
                f"`holdfast events {self._context.run}` will not find {path}; name the file instead: {error}",
            )


class JournalReader:
    """Reads a journal's lines, also those that are added later; lines that cannot be read are counted and skipped."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.unreadable = 0
        self._offset = 0
        self._rest = b""

    def read(self) -> Iterator[Line]:
        """Yield the whole lines since the last call; raises `OSError`."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while chunk := file.read(READ_BYTES):
                self._offset += len(chunk)
                *texts, self._rest = (self._rest + chunk).split(b"\n")
                if len(self._rest) > LINE_BYTES_MAX:
                    self._rest = b""
                yield from self._lines(texts)

    @property
    def torn(self) -> bool:
        """Whether the file ends in the middle of a line, after a crash or during a write."""
        return bool(self._rest)

    def _lines(self, texts: list[bytes]) -> Iterator[Line]:
        for text in texts:
            entry = entries.decode(text) if text.strip() else None
            if entry is not None:
                yield Line(entry, text)
            elif text.strip():
                self.unreadable += 1
