"""Shipping code: folders are copied into a job's own folder, so that later edits do not disturb the running job.

A file that was shipped before and has not changed is linked, not copied: each shipped file is kept once, under a name
made of its path, its size and its time of change. Because links share their bytes, shipped files are read-only. Root
can write to read-only files, so files that root ships are never shared: each job gets its own bytes, cloned if the
file system can do that, else copied.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import UnavailableError, UsageError
from holdfast.home import expand

if TYPE_CHECKING:
    from holdfast.workspace.api import Workspace
    from holdfast.workspace.ignore import Ignore

#: The first of these that a root has names the files that are not shipped.
IGNORE_FILES = (".holdfastignore", ".torchxignore", ".dockerignore")
#: More files than any code has: the user named the wrong folder.
FILES_MAX = 200_000
#: A kept file that no job has used for this long is dropped.
KEEP_UNUSED_S = 7 * 24 * 3600.0
#: A file changed this recently may change again without its time showing it, so its copy is not kept.
SETTLED_AFTER_S = 2.0
#: Linux's request to clone a file, which the standard library does not name.
_FICLONE = 0x40049409


@dataclass
class Shipped:
    """What one shipment did: how many files were copied, and how many were there already."""

    copied: int = 0
    linked: int = 0


@dataclass
class Survey:
    """What shipping one root would copy."""

    files: int = 0
    bytes: int = 0


def ship(
    workspace: Workspace, destination: Path, cache: Path | None = None, *, avoid: Collection[Path] = ()
) -> Shipped:
    """Copy every root of a workspace below `destination`; `cache` keeps shipped files for the next time.

    The cache only helps on the same file system as the destination. Folders to `avoid` are never shipped, and neither
    are those two.
    """
    shipped = Shipped()
    try:
        destination.mkdir(parents=True, exist_ok=True)
        if cache is not None:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        shunned = {path.resolve() for path in (destination, cache, *avoid) if path is not None}
        shared = None if cache is None or writes_read_only(cache) else cache
        for root, below in roots(workspace).items():
            _ship_root(root, destination / below, shared, shunned, shipped)
        if cache is not None:
            prune(cache)
    except OSError as error:
        raise UnavailableError(f"the workspace cannot be copied to {destination}: {error}") from error
    return shipped


def writes_read_only(folder: Path) -> bool:
    """Whether this process may write to a read-only file, as root does: then a shared file is not safe from it."""
    probe = folder / f".probe-{os.getpid()}-{time.monotonic_ns()}"
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400))
    try:
        return os.access(probe, os.W_OK, effective_ids=True)
    finally:
        probe.unlink(missing_ok=True)


def survey(root: Path, *, avoid: Collection[Path] = ()) -> Survey:
    """Return what shipping one root would copy, without shipping it."""
    if root.is_file():
        return Survey(1, root.stat().st_size)
    found = Survey()
    for _, entry in walk(root, avoid={path.resolve() for path in avoid}):
        if not entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                found.bytes += entry.stat(follow_symlinks=False).st_size
                found.files += 1
    return found


def roots(workspace: Workspace) -> dict[Path, str]:
    """Return the folders of a workspace and where each goes below the destination; raises `UsageError`."""
    pairs = {workspace: ""} if isinstance(workspace, str) else dict(workspace)
    found: dict[Path, str] = {}
    for source, below in pairs.items():
        text = source.removeprefix("file://")
        if "://" in text:
            raise UsageError(f"the workspace '{source}' is not on this machine; only local folders can be shipped")
        root = expand(text).resolve()
        if not root.exists():
            raise UsageError(f"the workspace '{source}' does not exist")
        clean = os.path.normpath(below.strip("/")) if below.strip("/") else ""
        if clean.startswith(".."):
            raise UsageError(f"the workspace '{source}' cannot go to '{below}': that is outside of the job's folder")
        found[root] = clean
    return found


def walk(
    root: Path, *, ignore: Ignore | None = None, avoid: Collection[Path] = ()
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files of one root that are shipped, as relative path and entry, in order of name."""
    rules = read_ignore(root) if ignore is None else ignore
    count = 0
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        below = []
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            ignored = rules.ignores(path, is_folder)
            if is_folder and avoid and Path(entry.path) in avoid:
                continue
            if is_folder and (not ignored or rules.may_bring_back):
                below.append(path)
            if ignored:
                continue
            count += 1
            if count > FILES_MAX:
                raise UsageError(
                    f"the workspace '{root}' has over {FILES_MAX:,} files; name a smaller folder, "
                    f"or leave some out with {IGNORE_FILES[0]}"
                )
            yield path, entry
        pending += reversed(below)


def read_ignore(root: Path) -> Ignore:
    """Read the ignore file of a root."""
    from holdfast.workspace.ignore import Ignore

    for name in IGNORE_FILES:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return Ignore((root / name).read_text(errors="replace").splitlines())
    return Ignore()


def prune(cache: Path, unused_s: float = KEEP_UNUSED_S) -> int:
    """Delete kept files that no job links to and that were not used for a while; return how many."""
    oldest = time.time() - unused_s
    dropped = 0
    for kept in cache.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process prunes too
            status = kept.stat()
            # The time of change is that of the last link made or removed.
            if status.st_nlink == 1 and status.st_ctime < oldest:
                kept.unlink()
                dropped += 1
    return dropped


def _ship_root(root: Path, destination: Path, cache: Path | None, avoid: Collection[Path], shipped: Shipped) -> None:
    """Copy one root, a folder or a single file, to its place."""
    if root.is_file():
        _place(root, root.stat(), destination / root.name, cache, shipped)
        return
    for path, entry in walk(root, avoid=avoid):
        target = destination / path
        if entry.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif entry.is_file():
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile: not part of the code
                _place(Path(entry.path), entry.stat(), target, cache, shipped)


def _place(source: Path, status: os.stat_result, target: Path, cache: Path | None, shipped: Shipped) -> None:
    """Put one file in its place: as a link to the kept file if that is the same, else as a copy that is kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if cache is None or time.time() - status.st_mtime < SETTLED_AFTER_S:
        _copy(source, target)
        shipped.copied += 1
        return
    kept = cache / _name(source, status)
    if _is_same(kept, status) and _link(kept, target):
        shipped.linked += 1
        return
    draft = cache / f"{kept.name}.{os.getpid()}"
    _copy(source, draft)
    draft.chmod(stat.S_IMODE(status.st_mode) & ~0o222)
    draft.replace(kept)
    if not _link(kept, target):
        _copy(source, target)
    shipped.copied += 1


def _name(source: Path, status: os.stat_result) -> str:
    from hashlib import blake2b

    key = f"{source}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\0{status.st_mode}"
    return blake2b(os.fsencode(key), digest_size=16).hexdigest()


def _is_same(kept: Path, status: os.stat_result) -> bool:
    """Whether the kept file is there and no job has written to it."""
    try:
        found = kept.stat()
    except FileNotFoundError:
        return False
    return (found.st_size, found.st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def _link(kept: Path, target: Path) -> bool:
    try:
        target.hardlink_to(kept)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOENT):
            return False
        raise
    return True


def _copy(source: Path, target: Path) -> None:
    import shutil

    try:
        if not _clone(source, target):
            shutil.copyfile(source, target)
        shutil.copystat(source, target)
    except PermissionError:
        raise UsageError(
            f"the workspace's file {source} cannot be read; change its rights or leave it out with {IGNORE_FILES[0]}"
        ) from None


def _clone(source: Path, target: Path) -> bool:
    """Clone a file: both share their bytes until one is written to; few file systems can do that."""
    with source.open("rb") as theirs, target.open("wb") as ours:
        try:
            fcntl.ioctl(ours.fileno(), _FICLONE, theirs.fileno())
        except OSError:
            return False
    return True
