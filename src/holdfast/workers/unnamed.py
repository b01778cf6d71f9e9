"""Log folders of runs whose user named none: all in one temporary folder of this user's, the oldest removed.

A folder is locked for as long as its agent lives. The lock is the proof of life: only what nobody holds is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

RUNS_KEPT_MAX = 50


def make_folder(prefix: str) -> tuple[str, int]:
    """Make a fresh folder and return it with a descriptor that holds it until that is closed."""
    home = _home()
    path = tempfile.mkdtemp(prefix=prefix, dir=home)
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks keeps what is there
        fcntl.flock(held, fcntl.LOCK_SH)
    _prune(home)
    return path, held


def _home() -> Path:
    """Return the folder of all unnamed runs, or a fresh one where somebody else has made that."""
    home = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    found = home.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return home if is_ours else Path(tempfile.mkdtemp(prefix="holdfast_"))


def _prune(home: Path) -> None:
    found: list[tuple[int, str]] = []
    with os.scandir(home) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another launch has just removed it
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    for _, path in sorted(found)[:-RUNS_KEPT_MAX]:
        with contextlib.suppress(OSError):  # it is held, or removed by now
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
