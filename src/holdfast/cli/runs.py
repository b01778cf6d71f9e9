"""`holdfast runs`: past and present runs of this host, and what became of their time."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.names import complete_runs, find_run
from holdfast.cli.tables import show, show_json
from holdfast.events.account import Phase
from holdfast.events.summary import losses_by_cause, percent, short_cause, slowest_text, split_line
from holdfast.printable import printable
from holdfast.quantities import ago, count, length
from holdfast.view.reading import open_recent, open_run
from holdfast.view.state import RunState

RUNS_SHOWN = 20
CAUSES_SHOWN = 12


@click.command()
@click.argument("run", metavar="[RUN]", default="", shell_complete=complete_runs)
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(1),
    default=RUNS_SHOWN,
    show_default=True,
    metavar="N",
    help="Only the last N runs.",
)
@click.option("--live", is_flag=True, help="Only runs that have not ended.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(run: str, tail: int, live: bool, as_json: bool) -> None:
    """List the runs of this host, the newest last: how each ended, how long it took, its goodput.

    With RUN, the account of that run: what its time was spent on, and what was lost to what. RUN is a run's id, a job's
    handle or id, or an unambiguous beginning of either.

    \b
      holdfast runs
      holdfast runs --live
      holdfast runs train-x7k2m
    """
    if run:
        opened = open_run(find_run(run))
        state = opened.look()
        show_json(as_data(state, opened.folder)) if as_json else click.echo(printable(_detail(state, opened.folder)))
        return
    found = [(opened.look(), opened.folder) for opened in reversed(open_recent(tail).values())]
    found = [(state, folder) for state, folder in found if state.is_live or not live]
    if as_json:
        show_json([as_data(state, folder) for state, folder in found])
        return
    if not found:
        none = "no run is live on this host" if live else "no run has left a journal on this host yet"
        click.echo(f"holdfast: {none}; `holdfast launch` or `holdfast run` starts one", err=True)
    now = time.time()
    show(
        ("RUN", "STARTED", "OUTCOME", "DURATION", "GOODPUT", "WORKERS", "RESTARTS", "MOST LOST TO"),
        [
            (
                state.run,
                ago(now - state.begin),
                state.outcome,
                length(state.end - state.begin),
                percent(state.account),
                state.world_size,
                state.restarts_used,
                _most_lost(state),
            )
            for state, _ in found
        ],
    )


def as_data(state: RunState, folder: str) -> dict[str, Any]:
    """Describe a run for programs; seconds are averages over its ranks."""
    account = state.account
    return {
        "run": state.run,
        "outcome": state.outcome,
        "reason": state.reason,
        "started": state.begin,
        "duration_s": state.end - state.begin,
        "workers": state.world_size,
        "rounds": state.round,
        "restarts": state.restarts_used,
        "goodput": account.goodput if account.measured else None,
        "seconds": {phase.value: account.seconds[phase] for phase in Phase},
        "losses": [
            {"cause": loss.cause, "phase": loss.phase.value, "seconds": loss.seconds} for loss in account.losses
        ],
        "steps": account.steps,
        "steps_redone": account.steps_redone,
        "slowest_rank": account.slowest[0] if account.slowest is not None else None,
        "logs": folder,
    }


def _most_lost(state: RunState) -> str:
    losses = losses_by_cause(state.account)
    return f"{length(losses[0][1])} to {short_cause(losses[0][0])}" if losses else ""


def _detail(state: RunState, folder: str) -> str:
    account = state.account
    restarts, rounds = count(state.restarts_used, "restart"), count(state.round, "round")
    reason = f": {state.reason}" if state.outcome == "failed" and state.reason else ""
    rows = [
        ("run", state.run),
        ("outcome", f"{state.outcome}{reason}"),
        ("lasted", f"{length(state.end - state.begin)}, {count(state.world_size, 'worker')}, {restarts}, {rounds}"),
        ("goodput", percent(account) or "unknown: no worker called holdfast.heartbeat(step)"),
        ("time", split_line(account)),
        ("steps", _steps(state)),
        ("logs", folder),
    ]
    lines = [f"{name:<8} {text}" for name, text in rows if text]
    losses = [f"  {length(seconds):>12}  {short_cause(cause)}" for cause, seconds in losses_by_cause(account)]
    return "\n".join([*lines, *(["lost to"] if losses else []), *losses[:CAUSES_SHOWN]])


def _steps(state: RunState) -> str:
    account = state.account
    if not account.measured:
        return ""
    redone = f", {account.steps_redone} made again" if account.steps_redone else ""
    slowest = f"; {slowest_text(account)}" if account.slowest is not None else ""
    return f"{account.steps}{redone}{slowest}"
