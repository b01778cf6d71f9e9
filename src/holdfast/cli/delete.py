"""`holdfast delete`: delete jobs with their logs."""

from __future__ import annotations

import click

from holdfast.cli.jobs import complete_handles, complete_schedulers, default_scheduler, open_runner
from holdfast.cli.names import find_handle, latest_hint
from holdfast.errors import UsageError
from holdfast.specs import UnknownAppError, is_terminal


@click.command()
@click.argument("handles", nargs=-1, metavar="[JOB]...", shell_complete=complete_handles)
@click.option("--all-finished", is_flag=True, help="Every job that has ended, on one scheduler.")
@click.option("-s", "--scheduler", metavar="NAME", shell_complete=complete_schedulers, help="For --all-finished.")
def command(handles: tuple[str, ...], all_finished: bool, scheduler: str | None) -> None:
    """Delete jobs with their logs; one that still runs is cancelled first.

    JOB is a job's handle or id, or an unambiguous beginning of its id.

    \b
      holdfast delete train-x7k2m
      holdfast rm train-x7k2m                      the same
      holdfast delete --all-finished
    """
    if handles and all_finished:
        raise UsageError("name the jobs to delete, or give --all-finished, and not both")
    with open_runner() as runner:
        if not handles and not all_finished:
            raise UsageError(f"name the jobs to delete, or give --all-finished{latest_hint(runner, 'delete')}")
        if all_finished:
            jobs = runner.list(scheduler or default_scheduler())
            chosen = [job.app_handle for job in jobs if is_terminal(job.state)]
        else:
            chosen = [find_handle(runner, each) for each in handles]
        for handle in chosen:
            if runner.status(handle) is None:
                if all_finished:  # another process deleted it first
                    continue
                raise UnknownAppError(handle)
            runner.delete(handle)
            click.echo(f"{handle} deleted")
