"""Logs of a job, for programs that show them themselves."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NoReturn, TextIO

from holdfast.cli.log_screen import LogScreen, Who, replicas_of
from holdfast.compat.torchx.cli.commands import ID_FORMAT
from holdfast.runner.api import Runner, get_runner
from holdfast.specs import AppDef, UnknownAppError

if TYPE_CHECKING:
    from holdfast.schedulers import Stream

_IDENTIFIER = re.compile(r"(?P<handle>\w+://[^/]*/[^/]+)(?:/(?P<role>[^/]+)(?:/(?P<ids>(?:\d+,?)+))?)?")


def validate(job_identifier: str) -> None:
    """End the process with 1 where this names no logs."""
    if _IDENTIFIER.fullmatch(job_identifier) is None:
        _exit(f"{job_identifier} is not of the form {ID_FORMAT}")


def _exit(sentence: str) -> NoReturn:
    print(sentence, file=sys.stderr)
    sys.exit(1)


def find_role_replicas(app: AppDef, role_name: str | None) -> list[tuple[str, int]]:
    """Return the replicas of a role, or of all."""
    return [(who.role, who.id) for who in replicas_of(app) if role_name in (None, who.role)]


def get_logs(
    file: TextIO,
    identifier: str,
    regex: str | None,
    should_tail: bool = False,
    runner: Runner | None = None,
    streams: Stream | None = None,
) -> None:
    """Write the lines of a job's replicas to a file, each after the name of its replica."""
    validate(identifier)
    named = _IDENTIFIER.fullmatch(identifier)
    assert named is not None
    runner = runner or get_runner()
    app = runner.describe(named["handle"])
    if app is None:
        raise UnknownAppError(named["handle"])
    ids = {int(each) for each in (named["ids"] or "").split(",") if each}
    chosen = [Who(*each) for each in find_role_replicas(app, named["role"]) if not ids or each[1] in ids]
    if not chosen:
        _exit(f"{identifier} names no replica; there are {', '.join(map(str, replicas_of(app)))}")
    with LogScreen(runner, named["handle"], chosen, file) as screen:
        if should_tail:
            screen.start(regex=regex, streams=streams)
            screen.wait_end()
        else:
            screen.show(regex=regex, streams=streams)


def _prefix_line(prefix: str, line: str) -> str:
    """Put a prefix before a line, and before each part of it that a terminal would begin anew."""
    inside = re.sub(r"\r|\n(?!\Z)", lambda stop: stop[0] + prefix, line)
    return inside if line.startswith("\r") else prefix + inside
