"""`holdfast wait`: until a job has ended."""

from __future__ import annotations

import sys

import click

from holdfast.cli.follow_job import conclude, say
from holdfast.cli.jobs import complete_handles, known_status, open_runner
from holdfast.cli.names import find_handle
from holdfast.errors import JobTimeoutError

#: What timeout(1) exits with.
TIMED_OUT = 124


@click.command()
@click.argument("handle", metavar="[JOB]", default="", shell_complete=complete_handles)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up then, with exit code 124.")
def command(handle: str, timeout: float | None) -> None:
    """Wait until a job has ended and exit with its exit code.

    JOB is a job's handle or id, or an unambiguous beginning of its id; without it, the latest job.

    \b
      holdfast wait
      holdfast wait train-x7k2m --timeout 600
    """
    with open_runner() as runner:
        full = find_handle(runner, handle)
        known_status(runner, full)
        try:
            status = runner.wait(full, timeout=timeout)
        except JobTimeoutError as error:
            say(str(error))
            sys.exit(TIMED_OUT)
        sys.exit(conclude(runner, full, status))
