"""The shared secret: where it comes from, who may read its file, and what to do where two nodes have different ones.

The first of these that is there is used, on every node:

    --insecure                 none: anyone who reaches the port can join
    --secret-file              a file
    $HOLDFAST_SECRET_FILE      a file
    $HOLDFAST_SECRET           the secret itself
    $HOLDFAST_INSECURE=1       none
    one node alone             a fresh one in memory; no other node needs it
    <state folder>/secret      this user's own file, made on first use

So no run is open by default, and nodes that share a home folder agree without being told anything.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.home import make_folders, preferred_folder, state_folder
from holdfast.wire.address import Endpoint

SECRET_FILE_VARIABLE = "HOLDFAST_SECRET_FILE"
SECRET_VARIABLE = "HOLDFAST_SECRET"
INSECURE_VARIABLE = "HOLDFAST_INSECURE"
#: All that say which secret a process uses.
VARIABLES = (SECRET_FILE_VARIABLE, SECRET_VARIABLE, INSECURE_VARIABLE)
#: A shorter one can be guessed from one recorded handshake.
SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 4096
#: How long a file that another host has just made may take to be seen here, as on NFS.
APPEAR_S = 5.0
_LOOK_S = 0.05

#: What to do where nodes disagree.
_REMEDY = f"give every node the same --secret-file, or set {SECRET_FILE_VARIABLE} or {SECRET_VARIABLE}"


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret and where it came from; `key` is empty when there is none."""

    key: bytes
    #: In words, as in "the file /home/a/job.secret".
    origin: str
    #: A file of this host that holds it, where one does.
    path: str = ""
    #: Whether it is this user's own, which no one has asked for by name.
    own: bool = False

    def __repr__(self) -> str:
        return f"Secret(origin={self.origin!r})"

    @property
    def fingerprint(self) -> str:
        """Return a few letters by which people can compare secrets; they say nothing about a long random one."""
        return hmac.digest(self.key, b"holdfast fingerprint", hashlib.sha256).hex()[:8]

    def as_environ(self) -> dict[str, str]:
        """Return the variables by which a child process finds this secret, whatever its environment said before."""
        if not self.key:
            return {INSECURE_VARIABLE: "1", SECRET_FILE_VARIABLE: "", SECRET_VARIABLE: ""}
        if self.path:
            return {SECRET_FILE_VARIABLE: self.path}
        return {SECRET_VARIABLE: os.fsdecode(self.key), SECRET_FILE_VARIABLE: ""}

    def wrong_at(self, endpoint: Endpoint) -> str:
        """Return what to do if the coordinator at an endpoint does not accept this secret."""
        if not self.key:
            return (
                f"the coordinator at {endpoint} asks for a shared secret, and this node runs with --insecure: "
                f"leave that out, and {_REMEDY}"
            )
        start = f"the shared secret is wrong: this node and the coordinator at {endpoint} have different ones. "
        if not self.own:
            return f"{start}This node uses {self.origin}; {_REMEDY}"
        if endpoint.is_loopback:
            copy = "the coordinator may be another user's, or have another home"
        else:
            copy = f"copy the file from there (scp {endpoint.host}:{self.path} {self.path})"
        return f"{start}This node uses this user's own, {self.path}: {copy}; or {_REMEDY}; or --insecure, to use none"


def find_secret(
    secret_file: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    insecure: bool = False,
    alone: bool = False,
) -> Secret:
    """Find the secret of this node, in the order that stands at the top of this module.

    `alone` says that no other node or command needs it. Raises `UsageError`, which says what to do.
    """
    if insecure:
        if secret_file is not None:
            raise UsageError("--insecure and --secret-file cannot be used together: leave one out")
        return Secret(b"", "none")
    named = secret_file or environ.get(SECRET_FILE_VARIABLE)
    if named:
        return read_secret(named)
    if text := environ.get(SECRET_VARIABLE):
        return Secret(_checked(os.fsencode(text).strip(), f"${SECRET_VARIABLE}"), f"${SECRET_VARIABLE}")
    if is_true(environ.get(INSECURE_VARIABLE, "")):
        return Secret(b"", "none")
    if alone:
        return Secret(make_key(), "a secret of this run alone")
    return own_secret(environ)


def own_secret(environ: Mapping[str, str] = os.environ) -> Secret:
    """Return this user's own secret, made if there is none; raises `UsageError`."""
    path = user_secret_path(environ).absolute()
    return Secret(_read_or_create(path), f"this user's own file {path}", str(path), own=True)


def open_door_warning(endpoint: Endpoint) -> str:
    """Return a warning about a run without a secret."""
    return (
        f"no shared secret (--insecure): anyone who can reach {endpoint} can join this run, "
        "read what it shares, and end it"
    )


def user_secret_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where this user's own secret lies: in a home folder that has one already, else in the state folder."""
    preferred = preferred_folder(environ)
    if preferred is not None and os.path.isfile(preferred / "secret"):  # noqa: PTH113 - pathlib's own may raise
        return preferred / "secret"  # also where the home folder is read-only
    return state_folder(environ) / "secret"


def read_secret(path: str | Path) -> Secret:
    """Read a secret from a file that only this user can read, or from a pipe; raises `UsageError`."""
    key, is_file = _read(Path(path))
    where = str(Path(path).absolute())
    if is_file:
        return Secret(key, f"the file {where}", where)
    if b"\0" in key:
        raise UsageError(f"the secret from {path} holds a zero byte: use a line of text")
    return Secret(key, f"what {path} said")  # a pipe can be read only once, so workers get it by a variable


def make_key() -> bytes:
    """Return a fresh secret: 256 random bits as a line of text."""
    return secrets.token_hex(32).encode()


def derive_key(key: bytes, run: str) -> bytes:
    """Return the secret of one run, which does not give away the one that it is made of."""
    return hmac.digest(key, b"holdfast run " + run.encode(), hashlib.sha256).hex().encode()


def write_secret(path: Path, key: bytes, *, replace: bool = False) -> bool:
    """Write a secret to a file that only this user can read; return whether it did, or the file was there already.

    Of several processes exactly one wins, and none sees half a file. Raises `UsageError`.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _write_new(draft, key)
        try:
            return _move(draft, path, key, replace=replace)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_create(path, error) from None


def is_true(text: str) -> bool:
    """Read a switch from the environment."""
    return text.strip().lower() in ("1", "true", "yes", "on")


def _move(draft: Path, path: Path, key: bytes, *, replace: bool) -> bool:
    if replace:
        draft.replace(path)
        return True
    try:
        os.link(draft, path)
    except FileExistsError:
        return False  # another process was first; its secret is ours too
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        with contextlib.suppress(FileExistsError):  # a file system without links
            _write_new(path, key)
            return True
        return False
    return True


def _write_new(path: Path, key: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key + b"\n")


def _read(path: Path) -> tuple[bytes, bool]:
    """Return what a file holds, and whether it is one that can be read again."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            key = file.read(SECRET_BYTES_MAX + 2).strip()
    except OSError as error:
        raise UsageError(
            f"cannot read the secret file {path}: {error.strerror}; one is made with: holdfast secret new {path}"
        ) from None
    is_file = stat.S_ISREG(found.st_mode)
    if is_file and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"the secret file {path} can be read by other users: run chmod 600 {path}")
    if is_file and found.st_uid not in (os.geteuid(), 0):
        raise UsageError(
            f"the secret file {path} belongs to user {found.st_uid}, who can change it: use a copy of your own"
        )
    return _checked(key, f"the secret file {path}"), is_file


def _checked(key: bytes, what: str) -> bytes:
    if not key:
        raise UsageError(f"{what} is empty: write a long random line into it, or use `holdfast secret new`")
    if len(key) < SECRET_BYTES_MIN:
        raise UsageError(
            f"{what} holds {len(key)} bytes and can be guessed: use at least {SECRET_BYTES_MIN}, "
            "or make one with `holdfast secret new`"
        )
    if len(key) > SECRET_BYTES_MAX:
        raise UsageError(f"{what} is over {SECRET_BYTES_MAX} bytes; a secret is a short line")
    return key


def _read_or_create(path: Path) -> bytes:
    if not os.path.lexists(path):
        try:
            make_folders(path.parent)
        except OSError as error:
            raise _cannot_create(path, error) from None
        write_secret(path, make_key())
    _wait_written(path)
    return _read(path)[0]


def _cannot_create(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot create the secret file {path}: {error.strerror}; "
        f"name one in a folder that you can write, or set HOLDFAST_HOME to such a folder, or ${SECRET_VARIABLE}"
    )


def _wait_written(path: Path) -> None:
    """Wait a moment for a file that another process, maybe on another host, is making."""
    deadline = time.monotonic() + APPEAR_S
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                return
        time.sleep(_LOOK_S)
