"""`holdfast runopts`: the run options of schedulers."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from holdfast.cli.jobs import complete_schedulers, open_runner
from holdfast.cli.tables import show_json
from holdfast.errors import HoldfastError
from holdfast.runner.api import Runner
from holdfast.schedulers import aliases
from holdfast.specs import runopts


@click.command()
@click.argument("scheduler", required=False, shell_complete=complete_schedulers)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(scheduler: str | None, as_json: bool) -> None:
    """Show the run options (-cfg) of SCHEDULER, or of every scheduler.

    \b
      holdfast runopts
      holdfast runopts local
    """
    with open_runner() as runner:
        found = {scheduler: runner.scheduler_run_opts(scheduler)} if scheduler else every_run_opts(runner)
    if as_json:
        show_json({name: _as_data(options) for name, options in found.items()})
        return
    for name, options in found.items():
        also = ", ".join(other for other, owner in aliases().items() if owner == name)
        click.echo(f"{name} (also {also}):" if also else f"{name}:")
        click.echo(textwrap.indent(str(options), "    ") + "\n")


def every_run_opts(runner: Runner, names: list[str] | None = None) -> dict[str, runopts]:
    """Return the run options of these schedulers, or all; a broken one is reported and left out.

    A scheduler with several names appears once, under the first.
    """
    found = {}
    for name in names or [each for each in runner.scheduler_backends() if each not in aliases()]:
        try:
            found[name] = runner.scheduler_run_opts(name)
        except HoldfastError as error:
            if names:
                raise
            click.echo(f"holdfast: {error}", err=True)
    return found


def _as_data(options: runopts) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": option.type_name,
            "required": option.is_required,
            "default": option.default,
            "help": option.help,
        }
        for name, option in options
    ]
