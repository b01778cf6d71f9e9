"""`holdfast chaos`: faults on a job of one's own, and a judge."""

from __future__ import annotations

import inspect
import random
import secrets
import signal
import sys
from typing import Any

import click

from holdfast.chaos.own_job import OwnJob
from holdfast.chaos.packets import check_can_cut
from holdfast.chaos.plan import ABOUT, FAULTS_MAX, NEED_ROOT, PlannedFault, Strike, make_plan, parse_kinds
from holdfast.chaos.targets import Targets
from holdfast.cli import INTERRUPTED
from holdfast.cli.names import complete_runs, find_run
from holdfast.cli.tables import show, show_json
from holdfast.events.index import live_run
from holdfast.printable import printable
from holdfast.quantities import count, length, parse_duration
from holdfast.view.reading import the_live_one

DEFAULT_PLAN = "kill-worker,kill-agent,freeze"
SEEDS = 1_000_000
EVERY_S_MIN = 1.0


def _complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the faults that are not in the list yet."""
    del ctx, param
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{kind}" for kind in Strike if kind.startswith(last) and kind not in before.split(",")]


@click.command()
@click.argument("run", metavar="[JOB]", default="", shell_complete=complete_runs)
@click.option(
    "--plan",
    "kinds",
    default=DEFAULT_PLAN,
    show_default=True,
    metavar="FAULT,...",
    shell_complete=_complete_kinds,
    help=f"The faults: {', '.join(Strike)}.",
)
@click.option("--every", default="30s", show_default=True, metavar="TIME", help="Time between two faults.")
@click.option(
    "--count",
    "number",
    type=click.IntRange(1, FAULTS_MAX),
    default=10,
    show_default=True,
    metavar="N",
    help="How many faults.",
)
@click.option(
    "--for", "lasts", default="10s", show_default=True, metavar="TIME", help="How long a freeze or cut lasts."
)
@click.option(
    "--recover-within",
    default="2m",
    show_default=True,
    metavar="TIME",
    help="After this long without steps of all ranks, the job has not recovered, and no more faults come.",
)
@click.option("--seed", type=click.IntRange(0), help="The same seed makes the same plan.  [default: a random one]")
@click.option("--wait", "wait_end", is_flag=True, help="After the last fault, wait for the end of the job.")
@click.option("--dry-run", is_flag=True, help="Show the plan and strike nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON; progress goes to stderr.")
def command(
    run: str,
    kinds: str,
    every: str,
    number: int,
    lasts: str,
    recover_within: str,
    seed: int | None,
    wait_end: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Strike a live job of your own with faults, one after the other, and say how it recovered from each.

    JOB is a job's handle or id, a run's id, or an unambiguous beginning of either; without it, the newest live one.
    Only agents and workers on this host are struck, and only those of a job that is yours. A fault strikes when the job
    has recovered from the one before. Ctrl-C strikes no more and takes back what is still on. Exits with 0 if the job
    recovered from every fault, did not fail, and left no process behind, else with 1.

    \b
      holdfast chaos train-x7k2m --dry-run
      holdfast chaos train-x7k2m --plan kill-worker,freeze --every 30s --seed 7
      holdfast chaos --plan kill-agent,drain --count 4 --wait --json
      sudo -E holdfast chaos train-x7k2m --plan cut --for 20s
    """
    chosen = parse_kinds(kinds)
    every_s, for_s = max(parse_duration(every), EVERY_S_MIN), parse_duration(lasts)
    seed = secrets.randbelow(SEEDS) if seed is None else seed
    plan = make_plan(chosen, number, every_s, for_s, random.Random(seed))
    if dry_run and not run and live_run() is None:
        _show_plan(plan, "", seed, as_json)  # a plan needs no job
        return
    targets = Targets(the_live_one(find_run(run)))
    if dry_run:
        _show_plan(plan, targets.name, seed, as_json)
        return
    if NEED_ROOT & set(chosen):
        check_can_cut()
    _say(
        f"{count(number, 'fault')} on run {targets.name}, one every {length(every_s)}, seed {seed}; Ctrl-C ends and "
        "takes back what is still on"
    )
    job = OwnJob(targets, plan, seed, parse_duration(recover_within))
    # Handlers only leave a mark: a fault that is half brought about could not be taken back.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: job.stop())
    report = job.run(_say, wait_end=wait_end)
    if as_json:
        show_json(report.to_json())
    else:
        click.echo(printable("\n".join(report.lines())))
    sys.exit(INTERRUPTED if report.was_interrupted else int(not report.is_good))


# The table of faults is the help's, too.
_FAULTS = "\n".join(f"  {kind:<12} {about}" for kind, about in ABOUT.items())
command.help = f"{inspect.cleandoc(command.help or '')}\n\n\b\nFaults:\n{_FAULTS}"


def _show_plan(plan: tuple[PlannedFault, ...], run: str, seed: int, as_json: bool) -> None:
    if as_json:
        data: dict[str, Any] = {"run": run, "seed": seed, "faults": [fault.to_json() for fault in plan]}
        show_json(data)
        return
    on = f" on run {run}" if run else ""
    click.echo(f"seed {seed}{on}; the worker or node is chosen when a fault strikes\n")
    rows = [(fault.number, f"after {length(fault.at_s)}", str(fault), ABOUT[fault.kind]) for fault in plan]
    show(("FAULT", "WHEN", "WHAT", "HOW"), rows)


def _say(sentence: str) -> None:
    click.echo(f"holdfast: {printable(sentence)}", err=True)
