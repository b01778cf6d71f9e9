"""What the command line says about a mistake: one sentence that says what to do. Imported only where there is one."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

import click

#: What helps after an error of the system.
REMEDIES = {
    errno.ENOSPC: "make room there, or choose another place",
    errno.EDQUOT: "make room there, or choose another place",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files, as in: ulimit -n 4096",
    errno.ENFILE: "this machine has no open files left; end something else first",
    errno.EAGAIN: "this user's limit on processes may be reached (ulimit -u)",
    errno.ENOMEM: "this machine is out of memory; end something else first",
    errno.EACCES: "choose a place where you may do that",
    errno.EPERM: "choose a place where you may do that",
    errno.EROFS: "choose a place that can be written",
}


def unknown_command(name: str, known: Collection[str]) -> str:
    """Return a hint for a command that does not exist."""
    from difflib import get_close_matches

    if name.endswith(".py") or os.path.isfile(name):  # noqa: PTH113 - the text of a user, as it is
        return f"'{name}' is not a command; to run a script write: holdfast launch {name}"
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean: holdfast {close[0]}?" if close else "`holdfast --help` lists the commands"
    return f"there is no command '{name}'; {hint}"


def usage_sentence(error: click.ClickException) -> str:
    """Return click's error about the command line as one sentence."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else ""
    if isinstance(error, click.NoSuchOption):
        return f"there is no option {error.option_name}; {_option_hint(error, context, path)}"
    message = " ".join(error.format_message().split()).rstrip(".")  # click lists choices on lines of their own
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    return f"{message}; see `{path} --help`" if path and "`" not in message else message


def system_sentence(error: OSError) -> str:
    """Return what the system refused, for which file, and what helps."""
    if isinstance(error, FileNotFoundError) and not _has_current_folder():
        return "the current folder is gone: change to one that exists"
    reason = error.strerror or str(error)
    where = f": {error.filename}" if error.filename is not None else ""
    remedy = REMEDIES.get(error.errno or 0)
    return f"{reason}{where}" + (f"; {remedy}" if remedy else "")


def _option_hint(error: click.NoSuchOption, context: click.Context | None, path: str) -> str:
    if error.possibilities:
        return f"did you mean {' or '.join(sorted(error.possibilities))}?"
    if context is not None and isinstance(context.command, click.Group):
        return f"options come behind the command, as in: {path} launch --nnodes 2 train.py"
    return f"`{path} --help` lists them" if path else "--help lists them"


def _has_current_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - only whether there is one
    except OSError:
        return False
    return True
