"""TorchX's command line, with the commands that packages add."""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence

from holdfast.compat.names.torchx import TORCHX_VERSION
from holdfast.compat.torchx.cli.cmd_base import SubCommand
from holdfast.compat.torchx.cli.colors import BLUE, ENDC, GRAY
from holdfast.compat.torchx.cli.commands import (
    CmdBuiltins,
    CmdCancel,
    CmdConfigure,
    CmdDescribe,
    CmdList,
    CmdLog,
    CmdRun,
    CmdRunopts,
    CmdStatus,
    CmdTracker,
)
from holdfast.compat.torchx.util.entrypoints import load_group
from holdfast.facts import facts


def get_default_sub_cmds() -> dict[str, SubCommand]:
    """Return TorchX's own commands."""
    return {
        "builtins": CmdBuiltins(),
        "cancel": CmdCancel(),
        "configure": CmdConfigure(),
        "describe": CmdDescribe(),
        "list": CmdList(),
        "log": CmdLog(),
        "run": CmdRun(),
        "runopts": CmdRunopts(),
        "status": CmdStatus(),
        "tracker": CmdTracker(),
    }


def get_sub_cmds() -> dict[str, SubCommand]:
    """Return all commands; one that a package adds replaces TorchX's own of that name."""
    found = get_default_sub_cmds()
    for name, make in (load_group("torchx.cli.cmds", default={}) or {}).items():
        try:
            found[name] = make()
        except Exception as error:  # noqa: BLE001 - a plugin may fail in any way, and costs only itself
            sentence = f"the command '{name}' of the group torchx.cli.cmds cannot be used: {error!r}"
            facts.warn("plugin_broken", sentence, plugin=name)
    return found


def create_parser(subcmds: Mapping[str, SubCommand]) -> ArgumentParser:
    """Return a parser of these commands."""
    parser = ArgumentParser(prog="torchx", description="torchx CLI, answered by Holdfast")
    parser.add_argument("--log_level", type=str, default=os.environ.get("LOGLEVEL", "INFO"), help="what is logged")
    parser.add_argument("--version", action="version", version=f"torchx-{TORCHX_VERSION}")
    below = parser.add_subparsers(title="sub-commands")
    for name, command in subcmds.items():
        each = below.add_parser(name)
        command.add_arguments(each)
        each.set_defaults(func=command.run)
    return parser


def run_main(subcmds: Mapping[str, SubCommand], argv: Sequence[str] | None = None) -> None:
    """Run a command line with these commands."""
    parser = create_parser(subcmds)
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        format=f"{BLUE}torchx{ENDC} {GRAY}%(asctime)s %(levelname)-8s{ENDC} %(message)s", level=args.log_level.upper()
    )
    if not hasattr(args, "func"):
        parser.print_help()
        sys.exit(1)
    args.func(args)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command line, by default this process's own."""
    run_main(get_sub_cmds(), argv)


if __name__ == "__main__":
    main()
