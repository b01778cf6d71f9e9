"""The log folder of a run without `--log-dir`: in one temporary folder per user, where the oldest are removed.

An agent holds a lock on its folder for as long as it lives. Only folders without a lock are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.private import PrivateFolder, make_private, user_folder_name

RUNS_KEPT_MAX = 50


def make_folder(prefix: str) -> tuple[str, int]:
    """Make a fresh folder; return it and a descriptor that locks it until the descriptor is closed."""
    try:
        home = make_private(Path(tempfile.gettempdir()), user_folder_name())
    except UsageError:  # another user has made that one first
        return _make_in(tempfile.mkdtemp(prefix="holdfast_"), prefix)
    with home:
        path, held = _make_in(str(home.path), prefix)
        _prune(home)
    return path, held


def _make_in(home: str, prefix: str) -> tuple[str, int]:
    path = tempfile.mkdtemp(prefix=prefix, dir=home)
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks keeps what is there
        fcntl.flock(held, fcntl.LOCK_SH)
    return path, held


def _prune(home: PrivateFolder) -> None:
    found: list[tuple[int, str]] = []
    for name in home.names():
        with contextlib.suppress(FileNotFoundError):  # another launch has just removed it
            status = home.status(name)
            if stat.S_ISDIR(status.st_mode):
                found.append((status.st_mtime_ns, name))
    for _, name in sorted(found)[:-RUNS_KEPT_MAX]:
        with contextlib.suppress(OSError, UsageError), home.folder(name) as folder:  # it is not ours, or gone by now
            if folder.hold(alone=True):
                home.remove_tree(name)
