"""Finding the journals that a user names, and reading them as one story."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import UnknownRunError, UsageError
from holdfast.events.entry import CLOSED, Entry, Line
from holdfast.events.index import is_writing, journals_of, recent_runs
from holdfast.events.journal import FILE_NAME, JournalReader
from holdfast.events.story import Merger, Told
from holdfast.home import expand
from holdfast.quantities import ago

RUNS_NAMED_MAX = 5


def find_story(text: str, *, everything: bool = False) -> Story:
    """Find the journals of a run id, a journal file or a log folder; without any, those of the newest run here."""
    if not text:
        newest = recent_runs(1)
        if not newest:
            raise UnknownRunError("no run has left a journal here yet; name a journal or a log folder")
        return _story_of_run(newest[0], everything)
    path = expand(text)
    means_path = os.sep in text or path.suffix == ".jsonl"
    if not (means_path and path.exists()) and journals_of(text):
        return _story_of_run(text, everything)
    if path.is_dir():
        return Story(lambda: _journals_in(path), everything=True)
    if path.exists():
        return Story(lambda: [path], everything=True)
    if means_path:
        raise UsageError(f"there is no file '{text}' on this host; {_recent()}")
    raise UnknownRunError(f"there is no run '{text}' on this host; {_recent()}")


def _story_of_run(run: str, everything: bool) -> Story:
    paths = [Path(noted.path) for noted in journals_of(run)]
    if not any(path.exists() for path in paths):
        raise UsageError(f"the journal of run '{run}' is gone: {paths[-1]} was there")
    return Story(lambda: [Path(noted.path) for noted in journals_of(run)], everything=everything)


def _journals_in(folder: Path) -> list[Path]:
    """The journal of a log folder, or those of the folders in it."""
    own = folder / FILE_NAME
    found = [own] if own.exists() else sorted(folder.glob(f"*/{FILE_NAME}"))
    if not found:
        raise UsageError(f"there is no {FILE_NAME} in {folder}; {_recent()}")
    return found


def _recent() -> str:
    runs = recent_runs(RUNS_NAMED_MAX)
    return f"the latest runs here: {', '.join(runs)}" if runs else "no run has left a journal here yet"


def _clock(when: float) -> str:
    """Format a time of day, with the date if that is not today."""
    then, today = time.localtime(when), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


@dataclass
class _Journal:
    reader: JournalReader
    #: Read, but not yet part of the story.
    lines: list[Line] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    closed: bool = False
    writer: Entry | None = None

    def read(self) -> None:
        for line in self.reader.read():
            entry = line.entry
            self.lines.append(line)
            self.first = self.first or entry.time
            self.last = max(self.last, entry.time)
            # An agent that is started again with the same file appends to it.
            self.closed = entry.kind == CLOSED
            if entry.pid is not None:
                self.writer = entry

    def take(self) -> list[Line]:
        lines, self.lines = self.lines, []
        return lines

    @property
    def abandoned(self) -> bool:
        """Whether its writer died without closing it; known only for processes of this host."""
        writer = self.writer
        if self.closed or writer is None or writer.host != socket.gethostname():
            return False
        return not is_writing(writer.host, writer.pid, writer.time)

    @property
    def is_workers(self) -> bool:
        """Whether a worker that trains in process wrote it, and not an agent."""
        return self.writer is not None and (self.writer.node or "").startswith("rank ")


class Story:
    """The journals of one run on this host, read as one; `read` can be called again for new lines.

    A run id may have been used before. Journals that were all closed before the next one began are an earlier run,
    which is shown only on demand.
    """

    def __init__(self, find: Callable[[], list[Path]], *, everything: bool) -> None:
        self._find = find
        self._everything = everything
        self._merger = Merger()
        self._journals: dict[Path, _Journal] = {}
        self._earlier: set[Path] = set()
        self._agents: set[tuple[str, int]] = set()
        self.start = 0.0
        self.latest = 0.0

    def read(self) -> list[Told]:
        """Return the lines that were written since the last call."""
        first = not self._journals
        for path in self._find():
            if path not in self._journals and path not in self._earlier:
                self._journals[path] = _Journal(JournalReader(path))
        for path, journal in list(self._journals.items()):
            self._read(path, journal)
        if first and not self._everything:
            self._leave_out_earlier()
        told = self._merger.merge({str(path): journal.take() for path, journal in self._journals.items()})
        self.start = self.start or (told[0].entry.time if told else 0.0)
        for line in told:
            self._learn(line.entry)
        return told

    def is_over(self) -> bool:
        """Whether no more lines can come: every journal was closed, or its agent is gone."""
        return all(journal.closed or journal.abandoned for journal in self._journals.values())

    def title(self) -> str:
        """Return a line with the run's id, when it started, whether it is live, and where its logs are."""
        if not self._journals:
            return "nothing is written yet"
        run = next((journal.writer.run for journal in self._journals.values() if journal.writer is not None), "")
        begun = min((journal.first for journal in self._journals.values() if journal.first), default=0.0)
        started = f"started {_clock(begun)} ({ago(time.time() - begun)})" if begun else "no line is written yet"
        if not self.is_over():
            state = "live"
        elif any(journal.abandoned and not journal.is_workers for journal in self._journals.values()):
            state = "its agent is gone"
        else:
            state = f"ended {_clock(max(journal.last for journal in self._journals.values()))}"
        return f"run {run or 'without an id'}, {started}, {state}; logs: {self.folder}"

    @property
    def paths(self) -> list[Path]:
        """The journals that were read."""
        return list(self._journals)

    @property
    def folder(self) -> str:
        """The folder that holds all its journals."""
        return os.path.commonpath([path.absolute().parent for path in self._journals])

    def label(self, entry: Entry) -> str:
        """Return which agent wrote a line, if there are several: the host, and the process on a shared host."""
        if entry.host is None or len(self._agents) < 2:
            return ""
        shared = sum(host == entry.host for host, _ in self._agents) > 1
        return f"{entry.host}:{entry.pid}" if shared else entry.host

    def notes(self) -> list[str]:
        """Return notes on the journals themselves, such as one that was never closed."""
        notes = []
        for path, journal in self._journals.items():
            if journal.abandoned and journal.writer is not None:
                torn = ", in the middle of a line" if journal.reader.torn else ""
                who = "worker" if journal.is_workers else "agent"
                notes.append(f"{path} just ends{torn}: its {who} (pid {journal.writer.pid}) is gone")
            if journal.reader.unreadable:
                notes.append(f"{path} has lines that cannot be read: {journal.reader.unreadable}")
        if self._earlier:
            notes.append(f"an earlier run had the same id; --all shows it too (journals: {len(self._earlier)})")
        return notes

    def _read(self, path: Path, journal: _Journal) -> None:
        try:
            journal.read()
        except FileNotFoundError:
            del self._journals[path]  # its folder was removed; the other journals remain
        except OSError as error:
            raise UsageError(f"cannot read the journal {path}: {error.strerror}") from None

    def _leave_out_earlier(self) -> None:
        in_order = sorted(self._journals.items(), key=lambda item: item[1].first)
        begins = 0
        for number in range(1, len(in_order)):
            before = [journal for _, journal in in_order[begins:number]]
            if all(journal.closed and journal.last <= in_order[number][1].first for journal in before):
                begins = number
        for path, _ in in_order[:begins]:
            self._earlier.add(path)
            del self._journals[path]

    def _learn(self, entry: Entry) -> None:
        self.latest = max(self.latest, entry.time)
        if entry.host is not None:
            self._agents.add((entry.host, entry.pid or 0))
