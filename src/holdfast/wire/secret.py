"""The shared secret: where it comes from, and a file that only this user can read."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.home import state_folder
from holdfast.wire.address import Endpoint

SECRET_FILE_VARIABLE = "HOLDFAST_SECRET_FILE"
SECRET_VARIABLE = "HOLDFAST_SECRET"
SECRET_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret and where it came from; `key` is empty when there is none."""

    key: bytes
    origin: str

    def __repr__(self) -> str:
        return f"Secret(origin={self.origin!r})"


def find_secret(
    endpoint: Endpoint, secret_file: str | Path | None = None, environ: Mapping[str, str] = os.environ
) -> Secret:
    """Find the secret for an endpoint: the file given, the environment, or this user's own file for loopback."""
    if secret_file is not None:
        return Secret(_read(Path(secret_file)), f"file {secret_file}")
    if environ.get(SECRET_FILE_VARIABLE):
        return Secret(_read(Path(environ[SECRET_FILE_VARIABLE])), f"file {environ[SECRET_FILE_VARIABLE]}")
    if environ.get(SECRET_VARIABLE):
        return Secret(os.fsencode(environ[SECRET_VARIABLE]), f"${SECRET_VARIABLE}")
    if endpoint.is_loopback:
        path = user_secret_path(environ)
        return Secret(_read_or_create(path), f"file {path}")
    return Secret(b"", "none")


def open_door_warning(endpoint: Endpoint) -> str:
    """Say who could join a run that has no secret."""
    return (
        f"no shared secret: anyone who can reach {endpoint} can join this run; "
        f"give every node the same --secret-file or ${SECRET_VARIABLE} to keep others out"
    )


def user_secret_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where this user's own secret lies."""
    return state_folder(environ) / "secret"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            key = file.read(SECRET_BYTES_MAX + 1).strip()
    except OSError as error:
        raise UsageError(
            f"cannot read the secret file {path}: {error.strerror}; "
            f"one is made with: (umask 077; openssl rand -hex 32 > job.secret)"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and stat.S_ISREG(mode):
        raise UsageError(f"the secret file {path} can be read by other users: run chmod 600 {path}")
    if not key:
        raise UsageError(f"the secret file {path} is empty: write a long random line into it")
    if len(key) > SECRET_BYTES_MAX:
        raise UsageError(f"the secret file {path} is over {SECRET_BYTES_MAX} bytes; a secret is a short line")
    return key


def _read_or_create(path: Path) -> bytes:
    if not path.exists():
        _create(path)
    return _read(path)


def _create(path: Path) -> None:
    """Write a fresh secret so that of several processes exactly one wins and nobody sees half a file."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was first; its secret is ours too
        finally:
            draft.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot create the secret file {path}: {error.strerror}; "
            f"set HOLDFAST_HOME to a folder that you can write, or ${SECRET_VARIABLE}"
        ) from None
