"""Folders that belong to this user alone, also below places where every user may write: /tmp and /dev/shm.

Another user can make a folder there first, with rights for all, or put a symbolic link to one of our own folders in its
place. So a folder is opened without following links, and its kind, owner and mode are read from the open descriptor.
Everything afterwards uses that descriptor, so a folder that is swapped for another in the meantime makes no difference.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.errors import UsageError

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: How often to begin again when another process of this user removes an empty folder that was just made.
TRIES_MAX = 10
#: What the kernel shows for an owner who has no number in this user namespace, as in a rootless container.
_UNMAPPED_UID = 65534


def user_folder_name() -> str:
    """Return the name of this user's folder below a folder that all users share."""
    return f"holdfast-{os.geteuid()}"


class PrivateFolder:
    """A folder that was found to be this user's, held open."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Its descriptor."""
        return self._descriptor

    def names(self) -> list[str]:
        """Return what is in it."""
        return sorted(os.listdir(self._descriptor))  # noqa: PTH208 - pathlib knows no descriptors

    def status(self, name: str | None = None) -> os.stat_result:
        """Return what is known of the folder, or of something in it; links are not followed."""
        if name is None:
            return os.fstat(self._descriptor)
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def folder(self, name: str, *, make: bool = False) -> PrivateFolder:
        """Open a folder in it; raises `UsageError` if that is not this user's alone, and `FileNotFoundError`."""
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._descriptor)
        path = self.path / name
        descriptor = _open_folder(path, name, self._descriptor)
        try:
            _check(descriptor, path, forbidden=0o077)
        except BaseException:
            os.close(descriptor)
            raise
        return PrivateFolder(path, descriptor)

    def file(self, name: str, flags: int) -> int:
        """Open a plain file of this user in it and return its descriptor; raises `OSError` for anything else."""
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(name, flags, 0o600, dir_fd=self._descriptor)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "it is no plain file of this user", str(self.path / name))
        return descriptor

    def is_still(self, name: str, descriptor: int) -> bool:
        """Whether a name in it still means what was opened by it."""
        try:
            now, then = self.status(name), os.fstat(descriptor)
        except FileNotFoundError:
            return False
        return (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)

    def unlink(self, name: str) -> None:
        """Remove a file in it; one that is gone already is fine."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def rmdir(self, name: str) -> bool:
        """Remove an empty folder in it; return whether it was there and empty."""
        try:
            os.rmdir(name, dir_fd=self._descriptor)
        except OSError:
            return False
        return True

    def remove_tree(self, name: str) -> None:
        """Remove a folder in it with all that it holds, as far as that can be; links are removed, not followed."""
        shutil.rmtree(name, ignore_errors=True, dir_fd=self._descriptor)

    def hold(self, *, alone: bool = False) -> bool:
        """Lock the folder until it is closed, `alone` or together with others; return whether that was possible."""
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:  # another process holds it, or this file system has no locks
            return False
        return True

    def close(self) -> None:
        """Close it; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        """Use it until the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __del__(self) -> None:
        self.close()


def make_private(base: Path, *names: str) -> PrivateFolder:
    """Make folders, one in the other, below a place that all users may share, and open the last one.

    Raises `UsageError` if one of them exists and is not this user's alone.
    """
    for left in reversed(range(TRIES_MAX)):
        try:
            return _walk(base, names, make=True)
        except FileNotFoundError:
            if not left or not base.is_dir():
                raise
    raise AssertionError("the last try returns or raises")


def find_private(base: Path, *names: str) -> PrivateFolder | None:
    """Open folders as `make_private` does, or return None if one is missing."""
    try:
        return _walk(base, names, make=False)
    except FileNotFoundError:
        return None


def own_folder(path: Path, *, make: bool = False) -> PrivateFolder | None:
    """Open a folder that a user has named; None if it is missing and not to be made.

    It must belong to this user, and others must not write to it; that they may read it is the user's choice.
    """
    path = path.absolute()
    if make:
        for each in (path.parent, path):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = _open_folder(path, path, None)
    except FileNotFoundError:
        return None
    try:
        _check(descriptor, path, forbidden=0o022)
    except BaseException:
        os.close(descriptor)
        raise
    return PrivateFolder(path, descriptor)


def _walk(base: Path, names: tuple[str, ...], *, make: bool) -> PrivateFolder:
    with PrivateFolder(base, os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as place:
        _check_place(place)
        at = place.folder(names[0], make=make)
    for name in names[1:]:
        with at:
            at = at.folder(name, make=make)
    return at


def _open_folder(path: Path, name: str | Path, parent: int | None) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UsageError(
                f"{path} is not a folder but a link or a file: remove it, or name another folder"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise UsageError(f"{path} cannot be opened: it belongs to another user or has the wrong mode") from None
        raise


def _check_place(place: PrivateFolder) -> None:
    """Refuse a parent folder in which another user could replace our folder."""
    found = place.status()
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise UsageError(f"every user may rename what is in {place.path}: set its sticky bit (chmod +t {place.path})")
    if found.st_uid not in (0, os.geteuid(), _UNMAPPED_UID):
        raise UsageError(f"{place.path} belongs to another user (uid {found.st_uid}), who may rename what is in it")


def _check(descriptor: int, path: Path, *, forbidden: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to another user (uid {found.st_uid}): remove it, or name another folder")
    if found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise UsageError(f"other users may look into or change {path} (mode {mode:o}): run chmod 700 {path}")
