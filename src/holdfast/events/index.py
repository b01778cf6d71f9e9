"""Which journals a run has on this host: one small file per run id in this user's state folder.

Writers hold a lock, so that agents that start together do not lose each other's lines. Readers need none: a file is
replaced, never rewritten in place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast.filenames import file_name
from holdfast.home import make_folders, state_folder

RUNS_MAX = 200
JOURNALS_PER_RUN_MAX = 200
_SUFFIX = ".jsonl"


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """One journal: where it lies, and which process of which host began to write it when."""

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
    """Return the journals of a run, oldest first; empty for a run that nobody knows."""
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
                with contextlib.suppress(OSError):  # forgotten by somebody else in this moment
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
            noted.append(msgspec.convert(json.loads(line), Noted))
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
