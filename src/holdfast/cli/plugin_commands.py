"""Sub-commands that installed packages add: entry points `holdfast.cli.cmds` and `torchx.cli.cmds`.

An entry point names a click command, or a class with `add_arguments(parser)` and `run(args)`, as TorchX's `SubCommand`
has them. Our own commands keep their names.
"""

from __future__ import annotations

from typing import Any

import click

from holdfast import plugins

GROUPS = ("holdfast.cli.cmds", "torchx.cli.cmds")


def added_commands() -> dict[str, str]:
    """Return the commands that packages add, each with a line of help; nothing is loaded."""
    return {plugin.name: f"Added by the package {plugin.package}." for plugin in plugins.find(*GROUPS)}


def hidden_commands() -> list[str]:
    """Return a sentence for each command of a package that has the name of one of ours and cannot be called."""
    from holdfast.cli import COMMANDS

    return [
        f"the command '{plugin.name}' of {plugin.package} ({plugin.value}) is not used: holdfast has that name"
        for plugin in plugins.find(*GROUPS)
        if plugin.name in COMMANDS
    ]


def load_command(name: str) -> click.Command | None:
    """Return the command of this name that a package adds, or None; raises `PluginBrokenError`."""
    plugin = plugins.get(name, *GROUPS)
    if plugin is None:
        return None
    from holdfast.cli.jobs import prepare

    prepare()
    found = plugin.load()
    if isinstance(found, click.Command):
        return found
    try:
        return _wrap(name, found())
    except Exception as error:
        raise plugins.PluginBrokenError(
            f"the command '{name}' of {plugin.package} ({plugin.value}) cannot be made: {type(error).__name__}: {error}"
        ) from error


def _wrap(name: str, command: Any) -> click.Command:
    """Make a click command that passes all arguments to the parser of a `SubCommand`."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog=f"holdfast {name}", description=type(command).__doc__)
    command.add_arguments(parser)
    parser.set_defaults(func=command.run)

    def call(words: tuple[str, ...]) -> None:
        args = parser.parse_args(list(words))
        args.func(args)

    return click.Command(
        name,
        callback=call,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
        add_help_option=False,
    )
