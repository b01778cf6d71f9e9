"""Where this user's runs keep things on this host, also for a user without a home folder.

$HOLDFAST_HOME                  where it is set; never replaced by another place
$XDG_STATE_HOME/holdfast        where it is set and can be written
~/.local/state/holdfast         where the home folder can be written
$TMPDIR/holdfast-state-<uid>    else: a private folder, as for `docker run --user 12345`
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import UsageError

HOME_VARIABLE = "HOLDFAST_HOME"


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what this user's runs keep on this host; one of a home folder may not exist yet.

    Raises `UsageError`, which says what to set, where no place can be written.
    """
    preferred = preferred_folder(environ)
    if preferred is not None and (environ.get(HOME_VARIABLE) or can_write(preferred)):
        return preferred
    return _temporary(environ)


def preferred_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the state folder that the environment asks for, whether it can be written or not; None without a home."""
    if named := environ.get(HOME_VARIABLE):
        return Path(named)
    state = environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):  # the specification has relative ones ignored
        return Path(state) / "holdfast"
    home = home_folder(environ)
    return None if home is None else home / ".local" / "state" / "holdfast"


def home_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return this user's home folder, or None if neither $HOME nor the password file names one."""
    if named := environ.get("HOME"):
        return Path(named)
    import pwd  # rarely needed

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def expand(path: str | Path) -> Path:
    """Put the home folder for a leading `~`; where that is not known, the path stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's own raises if there is no home


def can_write(folder: Path) -> bool:
    """Return whether a folder can be written, or made: looks at the nearest folder above it that exists."""
    for each in (folder, *folder.parents):
        # pathlib's own raise if a folder above may not be searched, as in another user's home.
        if os.path.lexists(each):
            return os.path.isdir(each) and os.access(each, os.W_OK | os.X_OK)  # noqa: PTH112
    return False


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing, all of them for this user alone; raises `OSError`.

    `Path.mkdir` gives its mode to the last one only.
    """
    for each in (*reversed(folder.parents), folder):
        if not os.path.isdir(each):  # noqa: PTH112 - pathlib's own may raise
            each.mkdir(mode=0o700, exist_ok=True)


def make_private(folder: Path) -> Path:
    """Make a folder that only this user can use, or accept one that is so; raises `UsageError` for any other.

    For folders in places that all users can write: another user may have put something there first.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}; {_REMEDY}") from None
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UsageError(f"{folder} is not a private folder of this user: remove it, or {_REMEDY}")
    return folder


_REMEDY = f"set {HOME_VARIABLE} to a folder that you can write"


def _temporary(environ: Mapping[str, str]) -> Path:
    named = environ.get("TMPDIR", "")
    try:
        base = Path(named) if named and can_write(Path(named)) else Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise UsageError(f"there is no folder for this user's files: {_REMEDY}") from None
    return make_private(base / f"holdfast-state-{os.geteuid()}")
