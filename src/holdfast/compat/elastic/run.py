"""TorchElastic's `run`: torchrun's command line for `holdfast launch`, as functions that launchers call.

`python -m torch.distributed.run` is `holdfast launch`. The parser is made from the same table of flags.
"""

from __future__ import annotations

import runpy
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from holdfast.agent.environment import LOCAL_RANK_MACRO
from holdfast.compat.elastic.argparse_util import check_env, env
from holdfast.compat.elastic.logging import get_logger
from holdfast.compat.elastic.utils import macros
from holdfast.errors import UsageError
from holdfast.failures import record
from holdfast.launcher.api import LaunchConfig, elastic_launch, results_of
from holdfast.launcher.config import config_from_options, logs_specs_class, meeting_place, parse_nnodes
from holdfast.launcher.options import FLAGS, OPTIONS, LaunchOptions, Option
from holdfast.launcher.words import arrange
from holdfast.workers import DefaultLogsSpecs, LogsSpecs, Std, local_world_size
from holdfast.workers.starter import command_line

__all__ = [
    "REMAINDER",
    "DefaultLogsSpecs",
    "LaunchConfig",
    "LogsSpecs",
    "Std",
    "check_env",
    "config_from_args",
    "determine_local_world_size",
    "elastic_launch",
    "env",
    "get_args_parser",
    "get_logger",
    "get_rdzv_endpoint",
    "get_use_env",
    "macros",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "record",
    "run",
    "run_script_path",
]

#: How torchrun's parser calls what ours calls otherwise.
_THEIRS = {"script": "training_script", "script_args": "training_script_args"}


class _Parser(ArgumentParser):
    """Reads a command line as `holdfast launch` does; flags that a launcher has added are argparse's own to read."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            words = arrange(words, FLAGS)
        except UsageError as mistake:
            self.error(str(mistake))
        return super().parse_known_args(words, namespace)


def get_args_parser() -> ArgumentParser:
    """Return a parser of torchrun's flags, and of ours; a launcher may add its own."""
    parser = _Parser(description="Torch Distributed Elastic Training Launcher, answered by Holdfast")
    for option in OPTIONS.values():
        _add(parser, option)
    parser.add_argument("training_script", type=str, help="The script, module or program to run.")
    parser.add_argument("training_script_args", nargs=REMAINDER)
    return parser


def _add(parser: ArgumentParser, option: Option) -> None:
    names = [option.flag, f"--{option.name}"] if "_" in option.name else [option.flag]
    names += [option.short] if option.short else []
    settings: dict[str, Any] = {"dest": option.name, "help": option.help.replace("%", "%%")}
    if option.is_flag:
        parser.add_argument(*names, action=check_env, **settings)
    elif option.repeats:
        parser.add_argument(*names, action="append", default=[], **settings)
    else:
        settings["choices"] = option.values or None
        parser.add_argument(*names, action=env, type=option.type, default=option.default, **settings)


def parse_args(args: Sequence[str]) -> Namespace:
    """Read torchrun's command line."""
    return get_args_parser().parse_args(args)


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """Read `N` or `MIN:MAX`."""
    if nnodes.count(":") > 1:
        raise RuntimeError(f"--nnodes '{nnodes}' must be a number or MIN:MAX, as in 4 or 2:4")
    return parse_nnodes(nnodes)


def determine_local_world_size(nproc_per_node: str) -> int:
    """Return how many workers a node has: a number, or the count for `auto`, `cpu` or `gpu`."""
    return local_world_size(nproc_per_node)


def _get_logs_specs_class(logs_specs_name: str | None) -> type[LogsSpecs]:
    """Return the class that decides where logs go, by the name of its entry point."""
    return logs_specs_class(logs_specs_name)


def get_rdzv_endpoint(args: Namespace) -> str:
    """Return where nodes meet."""
    options = _options(args)
    return meeting_place(options, *parse_nnodes(options.nnodes))[1]


def get_use_env(args: Namespace) -> bool:
    """Whether workers learn their local rank from the environment alone; only `launch` knows another way."""
    return bool(getattr(args, "use_env", True))


def config_from_args(args: Namespace) -> tuple[LaunchConfig, str, list[str]]:
    """Return what an agent needs, and the command of each worker: a program and its arguments."""
    config, entry = config_from_options(_options(args))
    program, *rest = command_line(entry)
    return config, program, rest


def _options(args: Namespace) -> LaunchOptions:
    known = {each.name: _THEIRS.get(each.name, each.name) for each in fields(LaunchOptions)}
    given = {ours: getattr(args, theirs) for ours, theirs in known.items() if hasattr(args, theirs)}
    for name in ("script_args", "metrics"):
        given[name] = tuple(given.get(name) or ())
    if not get_use_env(args):
        given["script_args"] = (f"--local-rank={LOCAL_RANK_MACRO}", *given["script_args"])
    return LaunchOptions(**given)


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this process as `__main__`."""
    sys.argv = [training_script, *training_script_args]
    runpy.run_path(training_script, run_name="__main__")


def run(args: Namespace) -> None:
    """Run this node's workers to their end; raises `ChildFailedError` if they fail."""
    config, program, rest = config_from_args(args)
    elastic_launch(config=config, entrypoint=program)(*rest)


def main(args: Sequence[str] | None = None) -> None:
    """Run torchrun's command line: return when all went well, raise `ChildFailedError` if workers failed."""
    launch_or_raise(_options(parse_args(sys.argv[1:] if args is None else args)))


def launch_or_raise(options: LaunchOptions) -> None:
    """Run `holdfast launch` with its screen and its report; raise an error for its exit code."""
    from holdfast.cli.launch import launch, leave_logs_to_the_screen
    from holdfast.launcher.screen import Screen

    leave_logs_to_the_screen()
    with Screen(quiet=options.quiet, as_json=options.json) as screen:
        report = launch(options, screen)
    results_of(report, options.script)


def be_the_command(words: Sequence[str]) -> None:
    """Run `holdfast launch` as a program, with its report and its exit code."""
    from holdfast.cli import main as holdfast

    holdfast(["launch", *words])


if __name__ == "__main__":
    be_the_command(sys.argv[1:])
