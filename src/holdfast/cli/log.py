"""`holdfast log`: what the replicas of a job wrote."""

from __future__ import annotations

import re
import sys
from datetime import datetime

import click

from holdfast.cli.follow import LogScreen, Who, replicas_of
from holdfast.cli.jobs import complete_handles, find_handle, open_runner
from holdfast.errors import UsageError
from holdfast.events import times
from holdfast.runner.api import Runner
from holdfast.schedulers import Stream
from holdfast.specs import UnknownAppException

_TARGET = re.compile(r"(?P<handle>(?:[^:/]+://[^/]*/)?[^/]+)(?:/(?P<role>[^/]*)(?:/(?P<ids>[^/]*))?)?")


@click.command()
@click.argument("target", metavar="HANDLE[/ROLE[/ID,...]]", shell_complete=complete_handles)
@click.option("-t", "--tail", is_flag=True, help="Go on as more is written, until the job has ended.")
@click.option("-n", "--lines", type=click.IntRange(0), help="Begin with the last so many lines of each replica.")
@click.option("--since", metavar="TIME", help="Only what was written since: 10m, 2h, or a time like 2026-11-15T10:30.")
@click.option("--until", metavar="TIME", help="Only what was written until then.")
@click.option("--regex", help="Only lines in which this is found.")
@click.option(
    "--streams", type=click.Choice([stream.value for stream in Stream]), help="Which output.  [default: combined]"
)
def command(
    target: str,
    tail: bool,
    lines: int | None,
    since: str | None,
    until: str | None,
    regex: str | None,
    streams: str | None,
) -> None:
    """Show the output of a job's replicas, each line behind the name of who wrote it.

    \b
      holdfast log echo-x7k2m                     every replica
      holdfast log --tail echo-x7k2m/trainer/0,1  two of them, as they go on
    """
    named = _TARGET.fullmatch(target)
    if named is None:
        raise UsageError(f"'{target}' is not of the form HANDLE[/ROLE[/ID,...]]")
    options = {
        "regex": regex,
        "since": parse_time(since, datetime.now().astimezone()),
        "until": parse_time(until, datetime.now().astimezone()),
        "streams": Stream(streams) if streams else None,
    }
    with open_runner() as runner:
        handle = find_handle(runner, named["handle"])
        replicas = _choose(runner, handle, named["role"], named["ids"])
        with LogScreen(runner, handle, replicas, sys.stdout) as screen:
            try:
                shown = screen.show(lines, **options)
                if tail:
                    sys.stdout.flush()
                    # A log only grows, so what was there already are the first lines that a tail yields.
                    screen.start(shown, **options)
                    screen.wait_end()
            except NotImplementedError as error:
                raise UsageError(f"the logs of {handle} cannot be shown: {error}") from None


def parse_time(text: str | None, now: datetime) -> datetime | None:
    """Read a time: so long ago (10m, 2h), or a date or time of day; raises `UsageError`."""
    if text is None:
        return None
    seconds = now.timestamp()
    return datetime.fromtimestamp(times.parse_time(text, seconds, seconds)).astimezone()


def _choose(runner: Runner, handle: str, role: str | None, ids: str | None) -> list[Who]:
    app, status = runner.describe(handle), runner.status(handle)
    if app is None or status is None:
        raise UnknownAppException(handle)
    every = replicas_of(app) or [Who(replica.role, replica.id) for replica in status.replicas()]
    chosen = [who for who in every if not role or who.role == role]
    if role and not chosen:
        roles = ", ".join(dict.fromkeys(who.role for who in every))
        raise UsageError(f"{handle} has no role '{role}'; there is {roles}")
    if not ids:
        return chosen
    try:
        numbers = [int(each) for each in ids.split(",")]
    except ValueError:
        raise UsageError(f"'{ids}' are no numbers of replicas: write them as 0,1,2") from None
    for number in numbers:
        if number not in {who.id for who in chosen}:
            raise UsageError(f"{handle} has no replica {role}/{number}")
    return [who for who in chosen if who.id in numbers]
