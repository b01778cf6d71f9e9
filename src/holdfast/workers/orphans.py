"""Orphans: processes that become our children while we are a subreaper, and that no other process would reap.

While a gang is open, an orphan among all descendants of this process becomes its child: also one that no worker of ours
has started, as in a program that runs `sh -c "something &"` beside its workers. Its first parent is gone and does not
wait for it; were we not a subreaper, init would. So a background thread looks now and then, and reaps it when it has
ended; after the last gang is closed it continues until all orphans are gone.

The program's own children must keep their exit codes, and the kernel does not tell a child from an orphan. A dead child
is left alone if any of this says that the program may wait for it:

- it was our child before we became a subreaper, or belongs to a gang or a template;
- this process has forked it (seen by a hook around `os.fork`);
- an object of `subprocess` or `multiprocessing` that has not been waited for has its pid;
- it has ended only a moment ago: a C library that forks waits at once.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast.threads import start_thread
from holdfast.workers.strays import Stat, children, read_stat

#: How long the thread rests between two looks, and at how many of them a process must have been dead.
LOOK_S, LOOKS_MIN = 2.0, 4

#: A process that is gone may have left its pid to another; with the time of its start it is named for good.
Name = tuple[int, int]


class Orphans:
    """Reaps the orphans of this process; `known` says which children belong to gangs and templates."""

    def __init__(self, known: Callable[[], frozenset[int]], look_s: float = LOOK_S) -> None:
        self._known = known
        self._look_s = look_s
        self._lock = threading.Lock()
        self._open = False
        self._own: set[Name] = set()  # children that the program may wait for
        self._dead: dict[Name, int] = {}  # how often each was seen dead
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def begin(self) -> None:
        """Note the children that are there; call this before orphans can come to this process."""
        with self._lock:
            self._open = True
            # An earlier orphan that is still here stays an orphan.
            self._own |= {name for name in map(_name, children(os.getpid())) if name and name not in self._dead}
            if self._thread is None:
                self._thread = start_thread(self._run, "holdfast-orphans", self._on_death)

    def end(self) -> None:
        """No more orphans come; those that have come are still waited for."""
        with self._lock:
            here = {name for name in map(_name, children(os.getpid())) if name and name not in self._own}
            self._dead = dict.fromkeys(here, 0) | self._dead
            self._open = False
        self._wake.set()

    def note_own(self, pid: int) -> None:
        """The program has forked this child itself."""
        if (name := _name(pid)) is not None:
            self._own.add(name)

    # -- on the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(self._look_s)
            with self._lock:
                was_open = self._open
            left = self.look()
            with self._lock:
                # A look that began before the end may not have seen the last orphans.
                if not was_open and not self._open and not left:
                    self._thread = None
                    self._own.clear()
                    return
            if self._wake.is_set():
                self._wake.clear()

    def _on_death(self, _: BaseException) -> None:
        with self._lock:
            self._thread = None  # the next gang starts another

    def look(self) -> int:
        """Reap children that have been dead for long enough; return how many are left that may be orphans."""
        known = self._known()
        with self._lock:
            # What `end` notes must not be judged by children that were listed before.
            here = [stat for stat in map(read_stat, children(os.getpid())) if stat is not None]
            found = [stat for stat in here if stat.pid not in known]
            names = {(stat.pid, stat.start) for stat in found}
            if not self._open:  # there are no new orphans any more: a new child is the program's own
                self._own |= names - self._dead.keys()
            self._dead = {name: count for name, count in self._dead.items() if name in names}
        # Only names that are gone for good: a hook may add one meanwhile.
        self._own -= {name for name in tuple(self._own) if name not in names and _name(name[0]) != name}
        servers = _multiprocessing_servers()
        left = [stat for stat in found if (stat.pid, stat.start) not in self._own and stat.pid not in servers]
        return sum(not self._reap(stat) for stat in left)

    def _reap(self, stat: Stat) -> bool:
        """Reap one that has ended; return whether it needs no further look."""
        name = (stat.pid, stat.start)
        self._dead.setdefault(name, 0)
        if stat.state != "Z":
            return False
        self._dead[name] += 1
        if self._dead[name] < LOOKS_MIN:
            return False
        if is_waited_for(stat.pid):
            self._own.add(name)
        elif stat.pid not in self._known():  # a worker that was started just now
            try:
                os.waitid(os.P_PID, stat.pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                pass  # the program has waited for it after all
        return True


def is_waited_for(pid: int) -> bool:
    """Return whether an object of this program stands for that child, and may be asked for its exit code."""
    classes: list[type] = []
    if (subprocess := sys.modules.get("subprocess")) is not None:
        classes.append(subprocess.Popen)
    if (popen := sys.modules.get("multiprocessing.popen_fork")) is not None:
        classes.append(popen.Popen)
    # Not isinstance, which asks the object: proxies and mocks answer anything.
    found: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), tuple(classes))]
    pids = [each.__dict__.get("pid") for each in found if each.__dict__.get("returncode") is None]
    return pid in pids or pid in _multiprocessing_servers()


def _multiprocessing_servers() -> tuple[int | None, ...]:
    """Return the pids of the servers that `multiprocessing` keeps running until this process ends."""
    server: Any = sys.modules.get("multiprocessing.forkserver")
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    return (
        getattr(getattr(server, "_forkserver", None), "_forkserver_pid", None),
        getattr(getattr(tracker, "_resource_tracker", None), "_pid", None),
    )


def _name(pid: int) -> Name | None:
    stat = read_stat(pid)
    return None if stat is None else (stat.pid, stat.start)
