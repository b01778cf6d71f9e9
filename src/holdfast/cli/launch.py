"""`holdfast launch`: torchrun's command line and more."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from typing import Any

import click

from holdfast.cli.flags import preset, with_flags
from holdfast.cli.levels import log_level
from holdfast.errors import HoldfastError, InternalError, UsageError
from holdfast.launcher import error_file, hints
from holdfast.launcher.api import LaunchReport, run_agent
from holdfast.launcher.config import config_from_options
from holdfast.launcher.options import LaunchOptions
from holdfast.launcher.screen import Screen
from holdfast.printable import printable
from holdfast.runner import config as configs
from holdfast.wire.descriptors import raise_limit
from holdfast.workers import LogsSpecs

#: With less room than this a disk counts as full: no line of a log fits.
DISK_BYTES_MIN = 4096
#: Set in the replicas of a job.
JOB_VARIABLE = "HOLDFAST_JOB_ID"


@with_flags(
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "ignore_unknown_options": False,
        "allow_interspersed_args": False,
    },
    options_metavar="[FLAGS]",
)
@click.argument("script", required=False, default="")
@click.argument("script_args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, /, **_: Any) -> None:
    """Run SCRIPT on every worker of this node, together with the other nodes, and keep it running.

    Takes torchrun's flags, with dashes or underscores, and its PET_* variables; the section [cli.launch] of a settings
    file holds defaults. Without --nproc-per-node there is one worker. Write flags before SCRIPT; words after SCRIPT are
    passed to it. Exits with the root cause's exit code, or 128+n for a signal.

    \b
      holdfast launch --nproc-per-node 2 train.py --lr 0.1
      holdfast launch --nnodes 2:4 --nproc-per-node 8 --max-restarts 3 \\
          --rdzv-backend holdfast --rdzv-endpoint host-a:29400 --rdzv-id job7 train.py
    """
    leave_logs_to_the_screen()
    with Screen(quiet=context.params["quiet"], as_json=context.params["json"]) as screen:
        if JOB_VARIABLE not in os.environ:  # the flags of a job were complete when it was submitted
            preset(context, configs.load().section("cli", "launch"), "cli.launch")
        raise_limit()
        try:
            report = launch(LaunchOptions(**context.params), screen)
        except (UsageError, InternalError):
            raise
        except HoldfastError as error:
            raise SystemExit(_fail(str(error))) from None
    sys.stdout.flush()
    sys.exit(report.exit_code)


def leave_logs_to_the_screen() -> None:
    """Do not print log lines, because the screen shows the same, unless LOGLEVEL asks for them."""
    if level := log_level():
        logging.basicConfig(level=level, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    else:
        logging.getLogger("holdfast").addHandler(logging.NullHandler())
        logging.getLogger("holdfast").propagate = False


def launch(options: LaunchOptions, screen: Screen) -> LaunchReport:
    """Run this node's workers to their end, and show the user what happens."""
    if options.compat:
        _lead_names()
    config, entry = config_from_options(options)
    warned = hints.warn_of_misplaced_flags(options)
    report = run_agent(config, entry, [])
    screen.conclude(report)
    if not warned and (hint := hints.hint_after(report, options)):
        click.echo(f"holdfast: {hint}", err=True)
    if report.exit_code and (full := full_disk(config.logs_specs)):
        click.echo(f"holdfast: {full}", err=True)
    error_file.write(report)
    return report


def _lead_names() -> None:
    """Make the module names of torchelastic and TorchX lead to ours: here, for plugins, and in the workers."""
    from holdfast.compat import VARIABLE, install

    os.environ[VARIABLE] = "all"
    install()


def full_disk(logs: LogsSpecs | None) -> str:
    """Return a sentence if the disk with the logs is full: workers that failed because of it may not say so."""
    try:
        folder = logs.root_log_dir if logs is not None else ""
        if folder and shutil.disk_usage(folder).free < DISK_BYTES_MIN:
            return f"the disk of {folder} is full; make room there, or name another place with --log-dir"
    except (OSError, UsageError):  # no log folder was made
        pass
    return ""


def _fail(sentence: str) -> int:
    click.echo(f"holdfast: {printable(sentence)}", err=True)
    error_file.write_sentence(sentence, 1)
    return 1
