"""The `holdfast` command: one small file per sub-command, imported only when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from holdfast import __version__
from holdfast.errors import HoldfastError, InternalError

#: Sub-commands and the line that `holdfast --help` says about each; the module has the same name.
COMMANDS = {
    "demo": "Watch a job survive a killed worker and a killed node; under a minute, on this machine.",
    "launch": "Run a script on this node's workers and keep it running; takes torchrun's flags.",
    "serve": "Run a coordinator on its own, so that agents may come and go.",
    "rounds": "Show the runs of a coordinator: nodes, rounds, and what they wait for.",
}


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"holdfast.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Launch distributed training anywhere and keep it running through every failure."""


def main() -> None:
    """Run the command line; an error of ours is one sentence and an exit code, never a traceback."""
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except InternalError:
        raise
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(2)
