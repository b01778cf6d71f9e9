"""`holdfast builtins`: the components that `holdfast run` knows by name."""

from __future__ import annotations

import click

from holdfast.cli.jobs import prepare


@click.command()
@click.option("--print", "name", metavar="NAME", help="Show the source of a component.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the components that can be run by name: the builtin ones, or those that packages register.

    \b
      holdfast builtins
      holdfast builtins --print dist.ddp
    """
    prepare()
    from holdfast.components.finder import get_builtin_source, get_components

    if name is not None:
        click.echo(get_builtin_source(name).rstrip())
        return
    found = get_components()
    if as_json:
        from holdfast.cli.tables import show_json

        show_json([{"name": each.name, "description": each.description} for each in found.values()])
        return
    click.echo(f"Found {len(found)} builtin components:")
    for number, each in enumerate(found, start=1):
        click.echo(f" {number:2d}. {each}")
