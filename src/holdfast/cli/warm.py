"""`holdfast warm`: the templates that launches with `--keep-warm` have left for the next ones."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.errors import UsageError
from holdfast.quantities import ago, count


@click.group()
def command() -> None:
    """Show and stop the processes that `holdfast launch --keep-warm TIME` keeps for the next launch.

    Each has imported what a script needs, torch say, and is used by the next launch of the same user with the same
    interpreter, environment and modules. It ends when none has come for TIME.

    \b
      holdfast launch --keep-warm 10m train.py
      holdfast warm list
      holdfast warm stop
    """


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_(as_json: bool) -> None:
    """List what is kept, with the memory that it holds.

    \b
      holdfast warm list
    """
    from holdfast.workers.kept import keepers

    found = [{**each, "memory_mb": _memory_mb(each)} for each in keepers()]
    if as_json:
        from holdfast.cli.tables import show_json

        show_json(found)
        return
    if not found:
        click.echo("nothing is kept; holdfast launch --keep-warm 10m keeps what a script imports for the next launch")
    for each in found:
        click.echo(_line(each))


@command.command()
@click.argument("key", required=False)
def stop(key: str | None) -> None:
    """Stop what is kept: the one whose KEY begins so, or all of it.

    One that a launch uses ends with that launch.

    \b
      holdfast warm stop               everything
      holdfast warm stop 3f9a          the one whose key begins so
    """
    from holdfast.workers.kept import keepers
    from holdfast.workers.kept import stop as stop_keeper

    found = [each for each in keepers() if key is None or each["key"].startswith(key)]
    if key is not None and not found:
        raise UsageError(f"nothing with the key '{key}' is kept; `holdfast warm list` shows what is")
    for each in found:
        answer = stop_keeper(each["key"])
        when = "ends with the launch that uses it" if answer.get("busy") else "stopped"
        click.echo(f"{each['key'][:8]}  {when}")
    if not found:
        click.echo("nothing is kept")


def _line(each: dict[str, Any]) -> str:
    key = each["key"][:8]
    if "modules" not in each:
        return f"{key}  does not answer"
    if each["busy"]:
        state = "in use"
    elif each["importing"]:
        state = "importing"
    else:
        state = f"ends in {each['idle_left_s']:.0f} s"
    uses = f"{count(each['launches'], 'use')} since {ago(time.time() - each['since'])}"
    return f"{key}  {','.join(each['modules'])}  pid {each['pid']}  {state}  {uses}  {each['memory_mb']} MB"


def _memory_mb(each: dict[str, Any]) -> int:
    """Return the memory that keeper and template hold."""
    from holdfast.workers.linux import memory_bytes

    return round(sum(memory_bytes(each[name]) or 0 for name in ("pid", "template") if name in each) / 1e6)
