"""`holdfast log`: what the replicas of a job wrote."""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime
from pathlib import Path

import click

from holdfast.cli.jobs import complete_handles, list_quietly, open_runner
from holdfast.cli.log_screen import LogScreen, Who, replicas_of
from holdfast.cli.names import find_handle, find_run
from holdfast.errors import UsageError
from holdfast.events import times
from holdfast.events.index import journals_of
from holdfast.filenames import file_name
from holdfast.runner.api import Runner
from holdfast.schedulers import Stream
from holdfast.specs import UnknownAppError

_TARGET = re.compile(r"(?P<handle>(?:[^:/]+://[^/]*/)?[^/]+)(?:/(?P<role>[^/]*)(?:/(?P<ids>[^/]*))?)?")


class _TailIsTwoThings(click.Command):
    """Reads `--tail N` as the number of last lines, and TorchX's `--tail` (or `-t`) without a number as --follow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _read_tail(args))


def _read_tail(words: list[str]) -> list[str]:
    """Put --follow in place of every `--tail` that no number belongs to."""
    end = words.index("--") if "--" in words else len(words)
    found = []
    for place, word in enumerate(words[:end]):
        has_number = word == "--tail" and "".join(words[place + 1 : place + 2]).isdecimal()
        found.append("--follow" if word in ("-t", "--tail") and not has_number else word)
    return found + words[end:]


@click.command(cls=_TailIsTwoThings)
@click.argument("target", metavar="[JOB[/ROLE[/ID,...]]]", default="", shell_complete=complete_handles)
@click.option("-f", "--follow", is_flag=True, help="Go on as more is written, until the job has ended.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each replica.")
@click.option("--lines", "tail", type=click.IntRange(0), hidden=True, help="The same as --tail.")
@click.option("--since", metavar="TIME", help="Only what was written since: 10m, 2h, or a time like 2026-11-15T10:30.")
@click.option("--until", metavar="TIME", help="Only what was written until then.")
@click.option("-g", "--grep", "--regex", "regex", help="Only lines that match this regular expression.")
@click.option("--path", is_flag=True, help="Print the folder that the logs are in, and nothing else.")
@click.option(
    "--streams", type=click.Choice([stream.value for stream in Stream]), help="Which output.  [default: combined]"
)
def command(
    target: str,
    follow: bool,
    tail: int | None,
    path: bool,
    since: str | None,
    until: str | None,
    regex: str | None,
    streams: str | None,
) -> None:
    """Show the output of a job's replicas, each line behind the name of its replica.

    JOB is a job's handle or id, or an unambiguous beginning of its id; without it, the latest job.

    \b
      holdfast log -f                              the latest job, until it ends
      holdfast log train-x7k2m                     every replica
      holdfast log -f -n 20 train-x7k2m            the last 20 lines of each, and what is added
      holdfast log -f train-x7k2m/trainer/0,1      two of them
      holdfast log --path train-x7k2m              where the files are
    """
    options = {
        "regex": regex,
        "since": parse_time(since, datetime.now().astimezone()),
        "until": parse_time(until, datetime.now().astimezone()),
        "streams": Stream(streams) if streams else None,
    }
    with open_runner() as runner:
        if not target and tail is not None and _is_job(runner, str(tail)):
            target, follow, tail = str(tail), True, None  # as in `log --tail 4711`: some schedulers have no other ids
        named = _parse(target)
        if path:
            _show_folders(runner, named["handle"] or "", named["role"], named["ids"])
            return
        handle = find_handle(runner, named["handle"] or "")
        replicas = _choose(runner, handle, named["role"], named["ids"])
        with LogScreen(runner, handle, replicas, sys.stdout) as screen:
            try:
                shown = screen.show(tail, **options)
                if follow:
                    sys.stdout.flush()
                    # A log only grows, so what was there already are the first lines that a tail yields.
                    screen.start(shown, **options)
                    screen.wait_end()
            except NotImplementedError as error:
                raise UsageError(f"the logs of {handle} cannot be shown: {error}") from None


def _parse(target: str) -> dict[str, str | None]:
    """Split a target into the job's name, a role and the numbers of replicas."""
    if not target:
        return {"handle": "", "role": None, "ids": None}
    named = _TARGET.fullmatch(target)
    if named is None:
        raise UsageError(f"'{target}' is not of the form JOB[/ROLE[/ID,...]]")
    return named.groupdict()


def _is_job(runner: Runner, text: str) -> bool:
    """Whether a scheduler has a job with exactly this id."""
    return any(job.app_id == text for name in runner.scheduler_backends() for job in list_quietly(runner, name))


def _show_folders(runner: Runner, name: str, role: str | None, ids: str | None) -> None:
    """Print where the logs are: of a job, of replicas of it, or of a run that `holdfast launch` has started."""
    try:
        handle = find_handle(runner, name)
    except UsageError:
        run = find_run(name)
        if not journals_of(run):
            raise
        click.echo(os.path.commonpath([Path(noted.path).parent for noted in journals_of(run)]))
        return
    folder = runner.log_folder(handle)
    if folder is None:
        raise UsageError(f"the scheduler of {handle} keeps no logs on this machine; `holdfast log {handle}` shows them")
    for who in _choose(runner, handle, role, ids) if role else ():
        click.echo(Path(folder) / file_name(who.role) / str(who.id))
    if not role:
        click.echo(folder)


def parse_time(text: str | None, now: datetime) -> datetime | None:
    """Read a time: so long ago (10m, 2h), or a date or time of day; raises `UsageError`."""
    if text is None:
        return None
    seconds = now.timestamp()
    return datetime.fromtimestamp(times.parse_time(text, seconds, seconds)).astimezone()


def _choose(runner: Runner, handle: str, role: str | None, ids: str | None) -> list[Who]:
    app, status = runner.describe(handle), runner.status(handle)
    if app is None or status is None:
        raise UnknownAppError(handle)
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
        raise UsageError(f"'{ids}' are not numbers of replicas: write them as 0,1,2") from None
    for number in numbers:
        if number not in {who.id for who in chosen}:
            raise UsageError(f"{handle} has no replica {role}/{number}")
    return [who for who in chosen if who.id in numbers]
