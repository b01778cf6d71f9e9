"""The `holdfast` command: one small file per sub-command, imported only when it is called."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from holdfast import __version__
from holdfast.errors import HoldfastError, InternalError
from holdfast.interrupts import UntilImported
from holdfast.printable import printable

#: Sub-commands by purpose, each with its line in `holdfast --help`; the module has the same name.
SECTIONS = {
    "Run a script on this machine": {
        "launch": "Run a script on this node's workers and keep it running; takes torchrun's flags.",
        "events": "Show a run's event log: which nodes joined, what failed and why; follows a live one.",
        "top": "Watch jobs live: ranks, steps per second, time lost, the last events.",
        "page": "Serve a live page of this user's runs and jobs, on loopback.",
        "runs": "List past and live runs: outcome, duration, goodput, and what time was lost to.",
        "stacks": "Show where the workers of a live run are.",
        "rounds": "Show the runs of a coordinator: nodes, rounds, and what they wait for.",
        "serve": "Run a coordinator on its own, so that agents may come and go.",
        "secret": "Make, find and compare the secret that nodes share.",
        "warm": "List and stop what launches with --keep-warm have left for the next ones.",
        "checkpoints": "List, verify and prune checkpoints.",
        "chaos": "Strike your own live job with seeded faults, and see how it recovers.",
        "demo": "Watch a job survive a killed worker and a killed node; under a minute, on this machine.",
    },
    "Submit jobs": {
        "run": "Submit a job, to this machine, Slurm, Kubernetes, SSH hosts or containers, and follow it.",
        "list": "List jobs.",
        "status": "Show the status of jobs, replica by replica.",
        "log": "Show what the replicas of a job wrote, and where their logs are.",
        "wait": "Wait until a job has ended and exit with its exit code.",
        "cancel": "Cancel jobs.",
        "delete": "Delete jobs and their logs.",
        "describe": "Show the app behind a job.",
        "tracker": "Show tracked metadata, artifacts and lineage of runs.",
    },
    "See what there is": {
        "builtins": "List the components that `run` knows by name.",
        "validate": "Check whether components can be run.",
        "resources": "List machines by name.",
        "runopts": "Show the run options of each scheduler.",
        "forecast": "Forecast the goodput of a job: what is lost to what, how often to save, how many spares.",
        "configure": "Write a settings file, or show which settings are in force.",
        "plugins": "List what installed packages add, and what of it is broken.",
        "completion": "Print the completion script for a shell.",
        "explain": "Explain a message by its code or its words.",
        "man": "Show the manual page of a command, or write all of them to a folder.",
    },
}
#: Short words that people know from other tools.
ALIASES = {"ps": "list", "rm": "delete", "stop": "cancel", "logs": "log"}
COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}

#: What a shell shows for a program that a closed pipe has ended.
_PIPE_CLOSED = 141
#: What a shell shows for a program that Ctrl-C has ended.
INTERRUPTED = 130


class _NobodyReads(Exception):
    """The reader of our output closed the pipe."""


@contextlib.contextmanager
def _noting_who_leaves() -> Iterator[None]:
    """Raise our own error for a closed pipe: click would exit with a code that means a failure."""
    try:
        yield
    except BrokenPipeError:
        raise _NobodyReads from None


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is used."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _noting_who_leaves():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        with _noting_who_leaves():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*COMMANDS]  # `list` is a module here once that command has been used

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            from holdfast.cli.plugin_commands import load_command

            return load_command(cmd_name)
        with UntilImported():
            module = importlib.import_module(f"holdfast.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from holdfast.cli.mistakes import unknown_command
            from holdfast.cli.plugin_commands import added_commands

            raise click.UsageError(unknown_command(args[0], {**COMMANDS, **added_commands()}))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        from holdfast.cli.plugin_commands import added_commands

        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(_with_aliases(name), line) for name, line in commands.items()])
        if added := {name: line for name, line in added_commands().items() if name not in COMMANDS}:
            with formatter.section("Added by packages"):
                formatter.write_dl([*added.items()])


def _with_aliases(name: str) -> str:
    return ", ".join([name, *(alias for alias, meant in ALIASES.items() if meant == name)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def cli() -> None:
    """Launch distributed training and keep it running through every failure.

    \b
      holdfast launch --nproc-per-node 2 train.py    run a script here, on two workers
      holdfast run -j 2x4 train.py                   submit it as a job
      holdfast top                                   watch what runs
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line, or these arguments; a mistake gives one sentence and an exit code."""
    _open_closed_streams()
    _write_escapes()
    try:
        try:
            cli(args, standalone_mode=False)
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, _NobodyReads):
        sys.exit(_PIPE_CLOSED)
    except click.ClickException as error:
        _tell_usage(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except InternalError:
        raise
    except HoldfastError as error:
        _say(str(error), error)
        sys.exit(2)
    except OSError as error:
        if os.environ.get("LOGLEVEL", "").upper() == "DEBUG":
            raise  # the user asked for tracebacks
        from holdfast.cli.mistakes import system_sentence

        _say(system_sentence(error))
        sys.exit(1)
    finally:
        _let_go_of_streams()


def _open_closed_streams() -> None:
    """Open the null device for a stream that the shell closed (`>&-`): one of our sockets would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


def _write_escapes() -> None:
    """Make streams escape characters that their encoding lacks: a file name must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _let_go_of_streams() -> None:
    """Drop unwritten output, so that the interpreter does not complain about it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tell_usage(error: click.ClickException) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":  # which older versions of click do not have
        error.show()
        return
    from holdfast.cli.mistakes import usage_sentence

    _say(usage_sentence(error), error)


def _say(sentence: str, error: Exception | None = None) -> None:
    with contextlib.suppress(OSError):  # a full disk, or a closed pipe
        click.echo(f"holdfast: {printable(sentence)}{_code(error)}", err=True)


def _code(error: Exception | None) -> str:
    """Return what shows an error's code on a terminal; programs that read our output get the sentence alone."""
    if error is None or not sys.stderr.isatty():
        return ""
    from holdfast.explain.reading import code_for

    code = code_for(error)
    return click.style(f" [explain {code}]", dim=True) if code else ""
