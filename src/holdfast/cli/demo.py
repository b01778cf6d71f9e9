"""`holdfast demo`: watch a job recover from kills."""

from __future__ import annotations

import sys

import click

from holdfast.demo.page import can_be_served
from holdfast.demo.screen import make_screen
from holdfast.demo.story import Report
from holdfast.demo.watch import DemoOptions, run_demo
from holdfast.errors import UsageError

_DEFAULTS = DemoOptions()
#: Steps between two kills where a person may open the page and kill workers there: the demo takes half a minute.
STEPS_WATCHED = 150
#: How long the page stays after the end.
STAY_S = 600.0


@click.command()
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=None,
    help="Training steps between two kills.  "
    f"[default: {_DEFAULTS.steps_between}; {STEPS_WATCHED} on a terminal with a page, to leave time for it]",
)
@click.option(
    "--step-time",
    type=click.FloatRange(0),
    default=_DEFAULTS.step_s,
    show_default=True,
    help="Seconds that a step takes at least.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=_DEFAULTS.patience_s,
    show_default=True,
    help="Seconds without a training step after which the demo has failed.",
)
@click.option(
    "--page/--no-page", "page", default=None, help="Serve a page of the job.  [default: if holdfast[page] is installed]"
)
def command(steps: int | None, step_time: float, patience: float, page: bool | None) -> None:
    """Watch two nodes of two workers train while a worker, and then a whole node, is killed.

    Everything runs on this machine and needs only Holdfast: two agents, one of which runs the coordinator, and
    four workers that fit a small model. Exits with 0 only if the job recovered from every kill and the model is right.
    On a terminal the page stays after the end, to be looked at. Ctrl-C ends everything.

    \b
      holdfast demo
      holdfast demo --steps 1000                   more time to kill workers in the browser
    """
    if page and not can_be_served():
        raise UsageError("the page needs starlette and uvicorn: pip install 'holdfast[page]'")
    served = can_be_served() if page is None else page
    watched = served and sys.stdout.isatty()
    options = DemoOptions(
        step_s=step_time,
        steps_between=steps or (STEPS_WATCHED if watched else _DEFAULTS.steps_between),
        patience_s=patience,
        page=served,
        stay_s=STAY_S if watched else 0.0,
    )
    with make_screen() as screen:
        ended = run_demo(options, screen)
        if not isinstance(ended, Report):
            sys.exit(128 + ended)
    sys.exit(0 if ended.succeeded else 1)
