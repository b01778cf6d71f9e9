"""`holdfast secret`: make the secret that nodes share, find it, and compare it between hosts."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import click

from holdfast.errors import UsageError
from holdfast.home import make_folders
from holdfast.wire.secret import (
    SECRET_FILE_VARIABLE,
    derive_key,
    find_secret,
    make_key,
    own_secret,
    read_secret,
    user_secret_path,
    write_secret,
)


@click.group()
def command() -> None:
    """Make, find and compare the secret that the nodes of a run share.

    Only nodes that have it can join a run. Nodes with the same home folder need nothing: they use this user's own
    secret, made on first use. For others, make a file and bring it to each of them.

    \b
      holdfast secret new job.secret        then, on every node: holdfast launch --secret-file job.secret ...
      holdfast secret which                 which one this node uses, with a fingerprint to compare
    """


@command.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--run", "run", help="Derive it from this user's own secret for the run of this id, the same each time.")
@click.option("--force", is_flag=True, help="Replace a file that is there; runs that use it cannot be joined any more.")
def new(file: Path | None, run: str | None, force: bool) -> None:
    """Write a new secret, to FILE or as this user's own.

    Only this user can read the file.

    \b
      holdfast secret new job.secret
      holdfast secret new job7.secret --run job7
      holdfast secret new --force           this user's own, anew
    """
    path = (user_secret_path() if file is None else file).absolute()
    if file is None and run is not None:
        raise UsageError("--run needs a file to write to, as in: holdfast secret new job7.secret --run job7")
    key = make_key() if run is None else derive_key(own_secret().key, run)
    if file is None:
        make_folders(path.parent)
    if not write_secret(path, key, replace=force):
        raise UsageError(f"{path} is there already: --force replaces it, `holdfast secret which` says what it is")
    click.echo(f"wrote {path} (fingerprint {read_secret(path).fingerprint})")
    for line in _what_now(path, own=file is None):
        click.echo(line)


@command.command()
@click.option("--secret-file", type=click.Path(), help="The secret of this file, instead of the one in use.")
def which(secret_file: str | None) -> None:
    """Say which secret this node uses.

    Nodes with the same fingerprint can meet.

    \b
      holdfast secret which
    """
    secret = find_secret(secret_file)
    if not secret.key:
        click.echo("none: HOLDFAST_INSECURE is set, and runs are open to anyone who reaches their port")
        return
    click.echo(f"{secret.fingerprint}  {secret.origin}")


@command.command()
def path() -> None:
    """Print the file of this user's own secret.

    It is made if there is none.

    \b
      holdfast secret path
    """
    click.echo(own_secret().path)


def _what_now(path: Path, *, own: bool) -> list[str]:
    """Say how the nodes of a run get the secret."""
    quoted = shlex.quote(str(path))
    use = "nothing to do" if own else f"--secret-file {quoted}, or {SECRET_FILE_VARIABLE}={quoted}"
    return [
        f"nodes that share this folder: {use}",
        f"each other node: scp -p {socket.gethostname()}:{quoted} {quoted}" + ("" if own else ", then the same"),
    ]
