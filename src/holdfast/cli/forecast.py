"""`holdfast forecast`: how much of a cluster's time a training job will use."""

from __future__ import annotations

import math

import click

from holdfast.cli.tables import show_json
from holdfast.errors import UsageError
from holdfast.forecast.plan import Noticed, Plan
from holdfast.forecast.report import as_data, complete, forecast, render
from holdfast.quantities import length, parse_duration

#: So many nodes may be out of a forecast at a time; the largest clusters have tens.
OUT_MAX = 1000

_Context = click.Context
_Parameter = click.Parameter


def _seconds(_: _Context, parameter: _Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value)
    except UsageError as error:
        raise click.BadParameter(str(error), param=parameter) from None


def _share(_: _Context, parameter: _Parameter, value: str) -> float:
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a share: write 78% or 0.78", param=parameter) from None


@click.command()
@click.option("--gpus", type=click.IntRange(1), required=True, metavar="N", help="GPUs that the job trains on.")
@click.option(
    "--gpus-per-node", type=click.IntRange(1), default=8, show_default=True, metavar="N", help="GPUs of a node."
)
@click.option(
    "--mtbf-node", callback=_seconds, metavar="TIME", help="Mean time between failures of one node, like 50000h."
)
@click.option(
    "--failure-every",
    callback=_seconds,
    metavar="TIME",
    help="Instead of --mtbf-node: between failures of the whole job.",
)
@click.option(
    "--checkpoint",
    callback=_seconds,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Pause for one checkpoint.",
)
@click.option(
    "--checkpoint-every", callback=_seconds, metavar="TIME", help="Training between two.  [default: the best]"
)
@click.option(
    "--detect", callback=_seconds, default="5s", show_default=True, metavar="TIME", help="Until a failure is noticed."
)
@click.option(
    "--restart",
    callback=_seconds,
    default="2m",
    show_default=True,
    metavar="TIME",
    help="From then until it trains again.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Groups that each hold the whole model. With more than one, only the group that failed restarts; the others "
    "wait for --detect, and nothing is done again.",
)
@click.option("--spares", type=click.IntRange(0), metavar="N", help="Nodes that stand by.  [default: the best number]")
@click.option(
    "--repair", callback=_seconds, default="1d", show_default=True, metavar="TIME", help="Until a broken node is back."
)
@click.option(
    "--needs-repair",
    callback=_share,
    default="78%",
    show_default=True,
    metavar="SHARE",
    help="Failures that need a repair; after others the node is used again at once.",
)
@click.option(
    "--noticed",
    type=click.Choice([each.value for each in Noticed]),
    default=Noticed.AT_ONCE.value,
    show_default=True,
    help="A failure during a recovery: begins it again at once, as with Holdfast, or costs another one at its end.",
)
@click.option(
    "--days", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True, help="Days to simulate."
)
@click.option("--runs", type=click.IntRange(1, 1000), default=20, show_default=True, help="Simulations.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other failures.")
@click.option(
    "--machines/--no-machines",
    default=None,
    help="Simulate Holdfast's own coordinator and agents, too.  [default: if it takes seconds]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the forecast as JSON.")
def command(
    gpus: int,
    gpus_per_node: int,
    mtbf_node: float | None,
    failure_every: float | None,
    checkpoint: float,
    checkpoint_every: float | None,
    detect: float,
    restart: float,
    replicas: int,
    spares: int | None,
    repair: float,
    needs_repair: float,
    noticed: str,
    days: float,
    runs: int,
    seed: int,
    machines: bool | None,
    as_json: bool,
) -> None:
    """Forecast the goodput of a job: the share of its time that is training, and what the rest is lost to.

    Says how often to save a checkpoint, how many nodes to keep as spares, and what would help most; by formula, by
    simulation, and with Holdfast's own coordinator and agents in simulated time. docs/FORECAST.md compares it with
    published figures.

    \b
      holdfast forecast --gpus 16384 --mtbf-node 50000h --checkpoint 60s
      holdfast forecast --gpus 1024 --failure-every 8h --restart 10m --spares 0
      holdfast forecast --gpus 98304 --failure-every 18m --detect 3m --restart 10m --replicas 12
    """
    if (mtbf_node is None) == (failure_every is None):
        raise UsageError("give either --mtbf-node, for one node, or --failure-every, for the whole job")
    if checkpoint_every == 0 and checkpoint > 0:
        raise UsageError("--checkpoint-every must be more than 0, or --checkpoint 0: training would only save")
    nodes = math.ceil(gpus / gpus_per_node)
    plan = Plan(
        nodes=nodes,
        node_mtbf_s=mtbf_node if mtbf_node is not None else (failure_every or 0.0) * nodes,
        gpus_per_node=gpus_per_node,
        checkpoint_s=checkpoint,
        detect_s=detect,
        restart_s=restart,
        groups=replicas,
        repair_s=repair,
        needs_repair=needs_repair,
        noticed=Noticed(noticed),
    )
    if plan.out > OUT_MAX:
        raise UsageError(
            f"with a failure every {length(plan.between_s)}, {plan.out:,.0f} of {nodes:,} nodes are being repaired at "
            f"a time; a forecast goes up to {OUT_MAX:,}: check the number of GPUs, --mtbf-node and --repair"
        )
    found = forecast(complete(plan, checkpoint_every, spares), days, runs, seed, machines=machines)
    show_json(as_data(found)) if as_json else click.echo(render(found))
