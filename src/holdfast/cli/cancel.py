"""`holdfast cancel`: end jobs."""

from __future__ import annotations

import click

from holdfast.cli.jobs import complete_handles, find_handle, known_status, open_runner


@click.command()
@click.argument("handles", nargs=-1, required=True, metavar="HANDLE...", shell_complete=complete_handles)
def command(handles: tuple[str, ...]) -> None:
    """End jobs; one that has ended already stays as it is.

    Returns at once, while the replicas take the time they have to end; `holdfast wait` waits for that.
    """
    with open_runner() as runner:
        for handle in [find_handle(runner, each) for each in handles]:
            before = known_status(runner, handle)
            if before.is_terminal():
                click.echo(f"{handle} has ended already: {before.state.name}")
            else:
                runner.cancel(handle)
                click.echo(f"{handle} is being ended")
