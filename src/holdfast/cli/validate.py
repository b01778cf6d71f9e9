"""`holdfast validate`: check whether components can be run."""

from __future__ import annotations

import sys

import click

from holdfast.cli.jobs import complete_components, prepare
from holdfast.cli.tables import show_json
from holdfast.errors import HoldfastError


@click.command()
@click.argument("names", nargs=-1, metavar="[COMPONENT]...", shell_complete=complete_components)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Check components: those named (also as file.py:function), or all that are known by name.

    Exits with 1 if one of them cannot be run.

    \b
      holdfast validate
      holdfast validate my_components.py:train
    """
    prepare()
    from holdfast.components.finder import get_components, problems

    found: dict[str, list[str]] = {name: _errors(name) for name in names or get_components()}
    if not names:
        for problem in problems():
            found.setdefault(problem.subject, []).append(problem.reason)
    if as_json:
        show_json([{"name": name, "ok": not errors, "errors": errors} for name, errors in found.items()])
    else:
        for name, errors in found.items():
            click.echo(f"{name}: {'ok' if not errors else 'cannot be run'}")
            for error in errors:
                click.echo(f"  {error}")
    sys.exit(1 if any(found.values()) else 0)


def _errors(name: str) -> list[str]:
    from holdfast.components.finder import find_component

    try:
        return [str(error) for error in find_component(name).validation_errors]
    except HoldfastError as error:
        return [str(error)]
