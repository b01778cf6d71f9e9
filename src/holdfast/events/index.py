"""Which journals a run has on this host, and whether it is live: one small file per run id in the state folder.

Writers hold a lock, so that agents that start together do not lose each other's lines. Readers need none: a file is
replaced, never rewritten in place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast.events.entry import CLOSED, decode
from holdfast.filenames import file_name
from holdfast.home import make_folders, state_folder
from holdfast.typed import learned

RUNS_MAX = 200
JOURNALS_PER_RUN_MAX = 200
_SUFFIX = ".jsonl"
#: How many of the latest runs are searched for a live one.
RUNS_LOOKED_AT_MAX = 20
#: How much of a journal's end is read: its last line says whether it was closed.
TAIL_BYTES = 64 * 1024
#: A process that started this much after its first line is another one that got the same pid.
CLOCK_SLACK_S = 30.0


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """One journal: its path, and which process of which host began to write it when."""

    version: int = 1
    run: str
    path: str
    host: str = ""
    time: float = 0.0
    pid: int = 0


def note_journal(
    run: str, path: Path, host: str, environ: Mapping[str, str] = os.environ, *, pid: int | None = None
) -> None:
    """Remember that a run has a journal at `path`; the oldest runs and journals beyond the limits are forgotten."""
    folder = _folder(environ)
    make_folders(folder)
    file = folder / _file_name(run)
    with _locked(folder / ".lock"):
        noted = [each for each in _read(file) if each.path != str(path)]
        writer = os.getpid() if pid is None else pid
        noted.append(Noted(run=run, path=str(path), host=host, time=time.time(), pid=writer))
        _replace(file, noted[-JOURNALS_PER_RUN_MAX:])
        for old in _newest_first(folder)[RUNS_MAX:]:
            old.unlink(missing_ok=True)


def journals_of(run: str, environ: Mapping[str, str] = os.environ) -> list[Noted]:
    """Return the journals of a run, oldest first; empty for an unknown run."""
    return [noted for noted in _read(_folder(environ) / _file_name(run)) if noted.run == run]


def recent_runs(count: int, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the ids of the runs whose agents started last, newest first."""
    newest = (_read(file) for file in _newest_first(_folder(environ))[:count])
    return [noted[-1].run for noted in newest if noted]


def _folder(environ: Mapping[str, str]) -> Path:
    return state_folder(environ) / "journals"


def _file_name(run: str) -> str:
    return file_name(run) + _SUFFIX


def _newest_first(folder: Path) -> list[Path]:
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):  # another process has just removed it
                    found.append((entry.stat().st_mtime_ns, entry.name))
    return [folder / name for _, name in sorted(found, reverse=True)]


def _read(file: Path) -> list[Noted]:
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return []
    noted = []
    for line in lines:
        # Not msgspec's own decoder: the path of a folder that is not UTF-8 holds surrogates, which it refuses.
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            noted.append(msgspec.convert(json.loads(line), learned(Noted)))
    return noted


def _replace(file: Path, noted: list[Noted]) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(b"".join(json.dumps(msgspec.to_builtins(each)).encode() + b"\n" for each in noted))
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# -- liveness ------------------------------------------------------------------------------------------------


def live_run() -> str | None:
    """Return the id of the newest run that has a live agent on this host, or None."""
    return next((run for run in recent_runs(RUNS_LOOKED_AT_MAX) if is_live(run)), None)


def is_live(run: str) -> bool:
    """Whether an agent or a worker of this run still writes its journal on this host."""
    return any(
        is_writing(noted.host, noted.pid, noted.time) and not _is_closed(Path(noted.path))
        for noted in reversed(journals_of(run))
    )


def is_writing(host: str | None, pid: int | None, since: float) -> bool:
    """Whether the process of this host that wrote a line at `since` is still running."""
    if host != socket.gethostname() or not pid:
        return False
    import psutil  # most commands that read the index do not need it

    try:
        return bool(psutil.Process(pid).create_time() <= since + CLOCK_SLACK_S)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True  # it exists, and we may not look at it


def _is_closed(path: Path) -> bool:
    """Whether a journal's last line closes it; a journal that was removed counts as closed."""
    try:
        with path.open("rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return True
    last = decode(lines[-1]) if lines else None
    return last is not None and last.kind == CLOSED
