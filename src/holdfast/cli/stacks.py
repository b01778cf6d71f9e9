"""`holdfast stacks`: where the workers of a live run are."""

from __future__ import annotations

import click

from holdfast.cli.names import complete_runs, find_run
from holdfast.cli.tables import show_json
from holdfast.errors import UsageError
from holdfast.failures.stacks import merge, name_ranks, odd_ones, render
from holdfast.printable import printable
from holdfast.view.reading import the_live_one


@click.command()
@click.argument("run", metavar="[JOB]", default="", shell_complete=complete_runs)
@click.option("--json", "as_json", is_flag=True, help="Print the stacks as JSON, by rank.")
def command(run: str, as_json: bool) -> None:
    """Show where the workers of a live job are: their Python stacks, merged where ranks are in the same place.

    Needs no heartbeat and no preparation in the script; training goes on. JOB is a job's handle or id, a run's id, or
    an unambiguous beginning of either; without it, the newest live one. Only workers on this host are shown.

    \b
      holdfast stacks
      holdfast stacks train-x7k2m
      holdfast stacks train-x7k2m --json
    """
    taken = the_live_one(find_run(run)).stacks()
    if not taken:
        raise UsageError("this run has no workers on this host at the moment; `holdfast top` shows what it waits for")
    if as_json:
        show_json({rank: stack.to_json() for rank, stack in taken.items()})
        return
    groups = merge(taken)
    if odd := odd_ones(groups):
        click.echo(f"{name_ranks(odd)}: not where the others are\n")
    click.echo(printable(render(groups)))
