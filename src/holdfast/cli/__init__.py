"""The `holdfast` command: one small file per sub-command, imported only when it is called."""

from __future__ import annotations

import importlib
import os
import sys

import click

from holdfast import __version__
from holdfast.errors import HoldfastError, InternalError

#: Sub-commands and the line that `holdfast --help` says about each, by what they are for; the module has the same name.
SECTIONS = {
    "Run a script on this machine": {
        "launch": "Run a script on this node's workers and keep it running; takes torchrun's flags.",
        "events": "Tell what happened in a run: who joined, what failed and why; follows a live one.",
        "rounds": "Show the runs of a coordinator: nodes, rounds, and what they wait for.",
        "serve": "Run a coordinator on its own, so that agents may come and go.",
        "checkpoints": "List, verify and prune checkpoints.",
        "demo": "Watch a job survive a killed worker and a killed node; under a minute, on this machine.",
    },
    "Submit jobs": {
        "run": "Submit a job, on this machine or any scheduler, and stay with it.",
        "list": "List jobs.",
        "status": "Show how jobs are doing, replica by replica.",
        "log": "Show what the replicas of a job wrote.",
        "wait": "Wait until a job has ended and exit with its exit code.",
        "cancel": "End jobs.",
        "delete": "Forget jobs and what they left behind.",
        "describe": "Show the app behind a job.",
    },
    "See what there is": {
        "builtins": "List the components that `run` knows by name.",
        "validate": "Check whether components can be run.",
        "resources": "List machines by name.",
        "runopts": "Show what can be chosen for a run on each scheduler.",
        "configure": "Write a settings file, or show which settings are in force.",
        "plugins": "List what installed packages add, and what of it is broken.",
        "completion": "Print the script that makes a shell complete these words.",
    },
}
COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}

#: What a shell shows for a program that a closed pipe has ended.
_PIPE_CLOSED = 141


class _NobodyReads(Exception):
    """Whoever read our output has seen enough."""


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is used."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # for which click has an exit code that means a failure
            raise _NobodyReads from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"holdfast.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Launch distributed training anywhere and keep it running through every failure."""


def main() -> None:
    """Run the command line; an error of ours is one sentence and an exit code, never a traceback."""
    try:
        try:
            cli(standalone_mode=False)
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, _NobodyReads):
        # What is still buffered must not complain on the way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PIPE_CLOSED)
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
