"""Starting launchers, hurting them, and reading from the steps that their workers log how long that held them up.

Every process that a scene starts carries a mark in its environment, and so do its children, so that all processes that
are left behind can be counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

SCRIPT = Path(__file__).with_name("ddp.py")
MARK = "HOLDFAST_BENCH_MARK"
#: How long a launcher may take to end when it is asked to, before what is left counts as left behind.
END_TIMEOUT_S = 10.0
#: How long after the death of an agent its processes may live before they count as left behind.
ORPHAN_AFTER_S = 2.0
LOOK_S = 0.02
#: For the C library: torch looks up names, and if no name server answers, that takes seconds on both sides.
NAME_SERVER = {"RES_OPTIONS": "timeout:1 attempts:1"}
#: For ranks that share a GPU. Set here and not by scripts: a standby has opened NCCL before a script runs.
NCCL_SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a rank's log."""

    rank: int
    at: float
    pid: int
    what: str
    world: int

    @property
    def is_step(self) -> bool:
        """Whether it tells of a step that is done."""
        return self.what.isdigit()


class StepLog:
    """What the workers of a job have logged so far; times are of the clock that `time.monotonic` reads here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.entries: list[Entry] = []

    def update(self) -> None:
        """Take in the lines that are new; one that is half written is left for later."""
        for path in sorted(self._folder.glob("rank-*")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            rank = int(path.name.partition("-")[2])
            for line in whole.decode().splitlines():
                at, pid, what, world = line.split()
                self.entries.append(Entry(rank, float(at), int(pid), what, int(world)))

    def pids(self) -> set[int]:
        """Return every process that has logged anything."""
        self.update()
        return {entry.pid for entry in self.entries}

    def wait_stepping(self, world: int, known: set[int], until: float) -> list[Entry] | None:
        """Wait until each rank of a world has stepped in a new process; returns those first steps, None if it does not.

        A step needs an average over all ranks, so it proves that all of them are there.
        """
        start = 0
        first: dict[int, Entry] = {}
        while True:
            self.update()
            for entry in self.entries[start:]:
                if entry.is_step and entry.world == world and entry.pid not in known:
                    first.setdefault(entry.rank, entry)
            start = len(self.entries)
            if len(first) == world:
                return [first[rank] for rank in sorted(first)]
            if time.monotonic() >= until:
                return None
            time.sleep(LOOK_S)

    def last(self, what: str, pids: Iterable[int]) -> float:
        """Return when the last of some processes came to a point."""
        wanted = set(pids)
        return max(entry.at for entry in self.entries if entry.pid in wanted and entry.what == what)

    def last_step(self, pids: Iterable[int]) -> float:
        """Return when some processes stepped last."""
        wanted = set(pids)
        return max(entry.at for entry in self.entries if entry.is_step and entry.pid in wanted)


class Launched:
    """A launcher or a coordinator that was started in a scene."""

    def __init__(self, process: subprocess.Popen[bytes], started_at: float, log: Path) -> None:
        self.process, self.started_at, self.log = process, started_at, log
        self._family: set[psutil.Process] = {psutil.Process(process.pid)}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_up(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def remember(self) -> set[int]:
        """Record the processes that it has started so far; return their pids."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._family |= set(psutil.Process(self.pid).children(recursive=True))
        return {each.pid for each in self._family} - {self.pid}

    def kill(self, workers: Iterable[int] = ()) -> float:
        """SIGKILL it, and these workers at the same moment; returns when."""
        self.remember()
        at = time.monotonic()
        for pid in (self.pid, *workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return at

    def left(self) -> set[int]:
        """Return which of those it had started, itself included, live on."""
        return {each.pid for each in self._family if _is_alive(each)}

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """Return the facts of a kind that it has told as JSON lines."""
        return [fact for fact in _json_lines(self.log) if fact.get("kind") == kind]


class Scene:
    """One job and all its processes, from entering the context to leaving it; afterwards nothing of it is left."""

    def __init__(self, *, device: str = "cpu", backend: str = "gloo") -> None:
        self.mark = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
        self.steps_folder = self.folder / "steps"
        self.steps_folder.mkdir()
        self.log = StepLog(self.steps_folder)
        self.launched: list[Launched] = []
        #: Processes that outlived the one that should have ended them, or been ended with it.
        self.orphans = 0
        #: Whether the logs are to stay.
        self.keep = False
        self._script = [str(SCRIPT), str(self.steps_folder), "--device", device, "--backend", backend]

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_politely()
        left = self._wait_gone(END_TIMEOUT_S / 2)
        self.orphans += len(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for each in self.launched:
            each.process.wait()
        if error is None and not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *argv: str) -> Launched:
        """Start a program with the scene's mark; its output goes to a file."""
        path = self.folder / f"{len(self.launched)}.log"
        folders = {"HOLDFAST_HOME": str(self.folder / "home"), "TMPDIR": str(self.folder)}
        environ = {**os.environ, **NAME_SERVER, **NCCL_SOCKETS, **folders, MARK: self.mark}
        with path.open("wb") as output:
            at = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
            )
        launched = Launched(process, at, path)
        self.launched.append(launched)
        return launched

    def launch(self, side: str, *flags: str) -> Launched:
        """Start the training script under one side's launcher."""
        module = ("holdfast", "launch", "--json") if side == "holdfast" else ("torch.distributed.run",)
        return self.start(*module, *flags, *self._script)

    def wait_templates(self, until: float) -> None:
        """Wait until our agents have the templates that they prepare beside their first workers."""
        told = ("template_prepared", "template_ready", "template_unusable")
        for each in self.launched:
            words = list(map(str, each.process.args))  # type: ignore[arg-type]
            while "launch" in words and "none" not in words and not any(each.facts(kind) for kind in told):
                if time.monotonic() >= until or not each.is_up:
                    raise RuntimeError(f"an agent has no template:\n{self.tail()}")
                time.sleep(LOOK_S)

    def workers_of(self, agent: Launched) -> set[int]:
        """Return the workers that an agent has now, by the logs that they write."""
        return agent.remember() & self.log.pids() & set(self.marked())

    def marked(self) -> list[int]:
        """Return every living process that carries the scene's mark."""
        mark = f"{MARK}={self.mark}".encode()
        return [pid for pid, environ in _environs() if mark in environ]

    def count_orphans(self, agent: Launched) -> int:
        """Wait a moment after an agent's death, then count those of its processes that live on, and end them."""
        until = time.monotonic() + ORPHAN_AFTER_S
        while (left := agent.left()) and time.monotonic() < until:
            time.sleep(LOOK_S)
        self.orphans += len(left)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left)

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of each log, for a report of what went wrong."""
        return "\n".join(
            f"--- {each.log.name}\n" + "\n".join(each.log.read_text(errors="replace").splitlines()[-lines:])
            for each in self.launched
        )

    def _end_politely(self) -> None:
        for each in self.launched:
            each.remember()
            if each.is_up:
                each.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + END_TIMEOUT_S
        for each in self.launched:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(max(0.0, until - time.monotonic()))

    def _wait_gone(self, timeout: float) -> set[int]:
        until = time.monotonic() + timeout
        while (left := {*self.marked(), *(pid for each in self.launched for pid in each.left())}) and (
            time.monotonic() < until
        ):
            time.sleep(LOOK_S)
        return left


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _environs() -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(folder.name), (folder / "environ").read_bytes()


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                yield json.loads(line)
