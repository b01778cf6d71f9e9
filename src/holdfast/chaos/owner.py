"""Whose job it is: chaos strikes only processes and journals of the user that asks for it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from holdfast.errors import UsageError


def own_uids(environ: Mapping[str, str] = os.environ) -> frozenset[int]:
    """Return the user ids that count as this user: its own, and with `sudo` that of the user that called it.

    Root is no exception: it strikes its own jobs, not those of others.
    """
    uids = {os.getuid()}
    caller = environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and caller.isdecimal():
        uids.add(int(caller))
    return frozenset(uids)


def check_journals(run: str, journals: Iterable[Path], uids: frozenset[int] | None = None) -> None:
    """Raise `UsageError` unless every journal and its folder belong to this user."""
    wanted = own_uids() if uids is None else uids
    for journal in journals:
        for path in (journal.parent, journal):
            try:
                owner = path.stat().st_uid
            except OSError as error:
                raise UsageError(f"cannot tell whose job '{run}' is: {path}: {error.strerror}") from None
            if owner not in wanted:
                raise UsageError(f"'{run}' is not your job: {path} belongs to {name_of(owner)}; {_REMEDY}")


def check_process(run: str, pid: int, uids: frozenset[int] | None = None) -> psutil.Process:
    """Return a process of a job; raises `UsageError` unless it runs as this user, and psutil's errors if it is gone."""
    wanted = own_uids() if uids is None else uids
    process = psutil.Process(pid)
    owner = process.uids().real
    if owner not in wanted:
        raise UsageError(f"'{run}' is not your job: its process {pid} runs as {name_of(owner)}; {_REMEDY}")
    return process


def name_of(uid: int) -> str:
    """Return the name of a user, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


_REMEDY = "chaos strikes only jobs of the user that calls it"
