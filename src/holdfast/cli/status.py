"""`holdfast status`: the status of jobs."""

from __future__ import annotations

import click

from holdfast.cli.jobs import complete_handles, known_status, open_runner
from holdfast.cli.names import find_handle
from holdfast.cli.tables import show_json
from holdfast.printable import printable


@click.command()
@click.argument("handles", nargs=-1, metavar="[JOB]...", shell_complete=complete_handles)
@click.option("--roles", default="", metavar="ROLE,...", help="Only the replicas of these roles.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(handles: tuple[str, ...], roles: str, as_json: bool) -> None:
    """Show the status of each job, and of its replicas.

    JOB is a job's handle or id, or an unambiguous beginning of its id; without it, the latest job.

    \b
      holdfast status
      holdfast status train-x7k2m
      holdfast status --json train-x7k2m echo-9pk3d
    """
    wanted = [role for role in roles.split(",") if role]
    with open_runner() as runner:
        named = [find_handle(runner, each) for each in handles or ("",)]
        found = {handle: known_status(runner, handle) for handle in named}
        logs = {handle: runner.log_folder(handle) for handle in found}
    if as_json:
        data = [{"handle": handle, **status.to_json(wanted), "logs": logs[handle]} for handle, status in found.items()]
        show_json(data[0] if len(data) == 1 else data)
        return
    for handle, status in found.items():
        click.echo(handle)
        click.echo(printable(status.format(wanted)))
        if logs[handle]:
            click.echo(f"Logs: {logs[handle]}")
