"""The family: the children that this process keeps on purpose, so that a search for strays leaves them alone.

While it has members this process is a subreaper: it adopts orphans among its descendants. Those of workers can
be found; all others are reaped when they end, see `orphans`.
"""

from __future__ import annotations

import os
import threading

from holdfast.workers import linux
from holdfast.workers.orphans import Orphans
from holdfast.workers.strays import children


class Family:
    """Counts the gangs and templates of this process and remembers their pids."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members = 0
        self._pids: dict[int, int] = {}  # pid -> how many times it was added
        self.orphans = Orphans(self.pids)

    @property
    def is_open(self) -> bool:
        """Whether orphans become children of this process."""
        return self._members > 0

    def enter(self) -> None:
        """A gang or a template begins; the first one makes this process a subreaper."""
        with self._lock:
            self._members += 1
            if self._members == 1:
                self.orphans.begin()
                linux.set_child_subreaper(True)

    def leave(self) -> None:
        """A gang or a template has ended; after the last one this process is no longer a subreaper."""
        with self._lock:
            self._members -= 1
            assert self._members >= 0, "a gang or template left the family twice"
            if self._members == 0:
                linux.set_child_subreaper(False)
                self.orphans.end()

    def add(self, pid: int) -> None:
        """This child is ours on purpose."""
        with self._lock:
            self._pids[pid] = self._pids.get(pid, 0) + 1

    def remove(self, pid: int) -> None:
        """This child has been waited for."""
        with self._lock:
            left = self._pids.pop(pid, 1) - 1
            if left:
                self._pids[pid] = left

    def pids(self) -> frozenset[int]:
        """The children that are ours on purpose."""
        with self._lock:
            return frozenset(self._pids)


_families: dict[int, Family] = {}


def family() -> Family:
    """Return this process's family; a forked child begins its own."""
    pid = os.getpid()
    if pid not in _families:
        _families.clear()
        _families[pid] = Family()
    return _families[pid]


_forking = threading.local()


def _before_fork() -> None:
    mine = _families.get(os.getpid())
    _forking.before = set(children(os.getpid())) if mine is not None and mine.is_open else None


def _after_fork() -> None:
    """Note the child that this process has just forked: the program may wait for it."""
    if (before := getattr(_forking, "before", None)) is not None:
        for pid in set(children(os.getpid())) - before:
            family().orphans.note_own(pid)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
