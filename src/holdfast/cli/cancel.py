"""`holdfast cancel`: end jobs."""

from __future__ import annotations

import click

from holdfast.cli.jobs import complete_handles, known_status, open_runner
from holdfast.cli.names import find_handle, latest_hint
from holdfast.errors import UsageError


@click.command()
@click.argument("handles", nargs=-1, metavar="JOB...", shell_complete=complete_handles)
def command(handles: tuple[str, ...]) -> None:
    """Cancel jobs; one that has ended already stays as it is.

    Returns at once, while the replicas take the time they have to end; `holdfast wait` waits for that. JOB is a job's
    handle or id, or an unambiguous beginning of its id.

    \b
      holdfast cancel train-x7k2m
      holdfast stop train-x7k2m echo-9pk3d         both, by the short word
    """
    with open_runner() as runner:
        if not handles:
            raise UsageError(f"name the jobs to cancel{latest_hint(runner, 'cancel')}")
        for handle in [find_handle(runner, each) for each in handles]:
            before = known_status(runner, handle)
            if before.is_terminal():
                click.echo(f"{handle} has ended already: {before.state.name}")
            else:
                runner.cancel(handle)
                click.echo(f"{handle} is being cancelled")
