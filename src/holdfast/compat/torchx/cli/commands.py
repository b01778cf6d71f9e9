"""The commands of TorchX: its flags, turned into those of ours."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from holdfast.compat.torchx.cli.argparse_util import ArgOnceAction
from holdfast.compat.torchx.cli.cmd_base import SubCommand

ID_FORMAT = "SCHEDULER://[SESSION_NAME]/APP_ID/[ROLE_NAME/[REPLICA_IDS,...]]"
HANDLE_HEADER, STATUS_HEADER = "APP HANDLE", "APP STATUS"
HANDLE = "torchx app handle (e.g. local://session-name/app-id)"


def call(name: str, words: Sequence[str]) -> None:
    """Run one of our commands with these words; if it fails, the process exits with 1, TorchX's only code."""
    from holdfast.cli import main

    try:
        main([name, *words])
    except SystemExit as ended:
        if ended.code:
            sys.exit(1)


class CmdRun(SubCommand):
    """Submits a job: `holdfast run`."""

    def __init__(self) -> None:
        self._subparser: argparse.ArgumentParser | None = None

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's flags of `run`."""
        self._subparser = subparser
        options = "run options, as in key=value,key=value"
        subparser.add_argument("-s", "--scheduler", action=ArgOnceAction, help="where to run it")
        subparser.add_argument("-cfg", "--scheduler_args", action=ArgOnceAction, help=options)
        subparser.add_argument("--dryrun", action="store_true", help="show what would be submitted")
        subparser.add_argument("--wait", action="store_true", help="wait for the end")
        subparser.add_argument("--log", action="store_true", help="show the output until the end")
        subparser.add_argument("--workspace", "--buck-target", help="the folder to ship with the job")
        subparser.add_argument("--parent_run_id", help="the run that this one belongs to")
        subparser.add_argument("component_name_and_args", nargs=argparse.REMAINDER)

    def run(self, args: argparse.Namespace) -> None:
        """Submit the job and stay with it as far as asked."""
        os.environ.setdefault("TORCHX_CONTEXT_NAME", "cli_run")
        words: list[str] = []
        for flag in ("scheduler", "scheduler_args", "workspace", "parent_run_id"):
            if value := getattr(args, flag, None):
                words += [f"--{flag}", str(value).removeprefix("file://") if flag == "workspace" else str(value)]
        words += [f"--{flag}" for flag in ("dryrun", "wait", "log") if getattr(args, flag, False)]
        component = list(args.component_name_and_args)
        call("run", [*words, *(component[1:] if component[:1] == ["--"] else component)])


class CmdBuiltins(SubCommand):
    """Lists components: `holdfast builtins`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's flags of `builtins`."""
        subparser.add_argument("--print", type=str, help="show the source of this component")

    def run(self, args: argparse.Namespace) -> None:
        """List the components, or show one."""
        call("builtins", ["--print", args.print] if args.print else [])


class CmdStatus(SubCommand):
    """Shows the status of a job: `holdfast status`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's flags of `status`."""
        subparser.add_argument("app_handle", type=str, help=HANDLE)
        subparser.add_argument("--roles", type=str, default="", help="only these roles, separated by commas")

    def run(self, args: argparse.Namespace) -> None:
        """Show the status."""
        call("status", [args.app_handle, "--roles", args.roles])


class CmdDescribe(SubCommand):
    """Shows the app behind a job: `holdfast describe`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's arguments of `describe`."""
        subparser.add_argument("app_handle", type=str, help=HANDLE)

    def run(self, args: argparse.Namespace) -> None:
        """Show the app."""
        call("describe", [args.app_handle])


class CmdCancel(SubCommand):
    """Ends a job: `holdfast cancel`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's arguments of `cancel`."""
        subparser.add_argument("app_handle", type=str, help=HANDLE)

    def run(self, args: argparse.Namespace) -> None:
        """End the job; does nothing if there is none."""
        from holdfast.runner import api

        with api.get_runner() as runner:
            runner.cancel(args.app_handle)


class CmdList(SubCommand):
    """Lists jobs: `holdfast list`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's flags of `list`."""
        subparser.add_argument("-s", "--scheduler", type=str, help="only this one's jobs")

    def run(self, args: argparse.Namespace) -> None:
        """List the jobs."""
        call("list", ["-s", args.scheduler] if args.scheduler else [])


class CmdLog(SubCommand):
    """Shows the output of replicas: `holdfast log`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's flags of `log`."""
        subparser.add_argument("--regex", type=str, help="only lines in which this is found")
        subparser.add_argument("-t", "--tail", action="store_true", help="go on as more is written")
        subparser.add_argument("--streams", type=str, help="stdout, stderr or combined")
        subparser.add_argument("identifier", type=str, metavar=ID_FORMAT)

    def run(self, args: argparse.Namespace) -> None:
        """Show the lines."""
        words = ["--follow"] if args.tail else []
        for flag in ("regex", "streams"):
            if value := getattr(args, flag):
                words += [f"--{flag}", value]
        call("log", [*words, args.identifier])


class CmdRunopts(SubCommand):
    """Shows run options: `holdfast runopts`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's arguments of `runopts`."""
        subparser.add_argument("scheduler", type=str, nargs="?", help="only this scheduler's")

    def run(self, args: argparse.Namespace) -> None:
        """Show the options."""
        call("runopts", [args.scheduler] if args.scheduler else [])


class CmdConfigure(SubCommand):
    """Writes a `.torchxconfig`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add TorchX's flags of `configure`."""
        subparser.add_argument("-s", "--schedulers", type=str, help="only these, separated by commas")
        subparser.add_argument("--print", action="store_true", help="print it instead of writing a file")
        subparser.add_argument("-a", "--all", action="store_true", help="options that have a default, too")

    def run(self, args: argparse.Namespace) -> None:
        """Write the file, or print it."""
        from pathlib import Path

        from holdfast.compat.torchx.config import CONFIG_FILE, dump

        schedulers = args.schedulers.split(",") if args.schedulers else None
        if args.print:
            dump(sys.stdout, schedulers, required_only=not args.all)
            return
        with Path(CONFIG_FILE).open("w") as file:
            dump(file, schedulers, required_only=not args.all)


class CmdTracker(SubCommand):
    """Shows tracked metadata of runs: `holdfast tracker`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Leave all words to our command."""
        subparser.add_argument("words", nargs=argparse.REMAINDER, metavar="list jobs|metadata|artifacts|lineage ...")

    def run(self, args: argparse.Namespace) -> None:
        """Show it."""
        call("tracker", args.words)
