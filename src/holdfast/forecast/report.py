"""A whole forecast: by formula, by simulation and with the machines, what would be best, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from statistics import fmean
from typing import Any

from holdfast.forecast.fleet import Fleet
from holdfast.forecast.formula import best_interval, best_spares, shares, value_of
from holdfast.forecast.plan import DAY_S, Account, Loss, Plan, Shares
from holdfast.forecast.simulate import simulate
from holdfast.quantities import length

#: A simulation with the machines may have so many nodes times failures: some seconds' work.
MACHINES_COST_MAX = 30_000
#: All simulations together live through so many failures at most: some seconds' work. Then they are shorter.
FAILURES_MAX = 500_000
#: With fewer failures than this, a simulation says little.
FAILURES_MIN = 5
#: How much better a part has to be to be named as a help: a tenth of what it was.
_TENTH = 0.1
_HELPS_GROUPS = 8
_POINT = 0.001


@dataclass(frozen=True, slots=True)
class Estimate:
    """What simulations came to: the mean of their shares, and the range of their goodput."""

    shares: Shares
    low: float
    high: float
    runs: int
    days: float
    failures: int


@dataclass(frozen=True, slots=True)
class Help:
    """A change, and how many points of goodput it would add by formula."""

    change: str
    goodput: float
    gain: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be expected of a plan."""

    plan: Plan
    formula: Shares
    simulated: Estimate
    #: With Holdfast's own machines, or why that was left out.
    machines: Estimate | None
    machines_note: str
    best_interval_s: float
    best_spares: int
    #: The share of the time of all nodes, spares included, that is training.
    of_all_nodes: float
    helps: tuple[Help, ...]


def complete(plan: Plan, interval_s: float | None, spares: int | None) -> Plan:
    """Return the plan with the best interval and number of spares where none were given."""
    if interval_s is None:
        interval_s = best_interval(plan) if plan.groups == 1 else 0.0
    plan = replace(plan, interval_s=interval_s)
    return replace(plan, spares=best_spares(plan) if spares is None else spares)


def forecast(
    plan: Plan, days: float = 30.0, runs: int = 20, seed: int = 0, *, machines: bool | None = None
) -> Forecast:
    """Forecast a plan; `machines` is None to simulate with the real machines where that takes seconds."""
    best_s = best_interval(plan)
    days = min(days, FAILURES_MAX / (runs * DAY_S * plan.rate))
    accounts = []
    for number in range(runs):
        rng = Random(f"{seed} {number}")
        accounts.append(simulate(plan, days, rng.expovariate, rng.random))
    estimate, note = _with_machines(plan, days, seed, machines)
    formula = shares(plan)
    return Forecast(
        plan,
        formula,
        _estimate(accounts, days),
        estimate,
        note,
        best_s,
        best_spares(plan),
        value_of(plan),
        _helps(plan, formula.goodput),
    )


def _with_machines(plan: Plan, days: float, seed: int, wanted: bool | None) -> tuple[Estimate | None, str]:
    failures = days * 86_400 * plan.rate
    if wanted is False:
        return None, "left out, as asked for"
    if plan.groups > 1:
        return None, "left out: the machines' simulation knows no replica groups"
    if wanted is None:
        days = min(days, days * MACHINES_COST_MAX / max(failures * plan.nodes, 1))
        if days * 86_400 * plan.rate < FAILURES_MIN:
            return None, "left out: it would take minutes; --machines does it"
    return _estimate([Fleet(plan, Random(f"{seed} fleet")).run(days)], days), ""


def _estimate(accounts: Sequence[Account], days: float) -> Estimate:
    each = [account.shares() for account in accounts]
    losses = {loss: fmean(one.losses.get(loss, 0.0) for one in each) for loss in Loss}
    mean = Shares(fmean(one.goodput for one in each), losses)
    goodputs = [one.goodput for one in each]
    failures = sum(account.failures for account in accounts)
    return Estimate(mean, min(goodputs), max(goodputs), len(each), days, failures)


def _helps(plan: Plan, goodput: float) -> tuple[Help, ...]:
    """Return what would raise the goodput, the most helpful first."""
    changes: list[tuple[str, Plan]] = []
    if plan.groups == 1:
        best = replace(plan, interval_s=best_interval(plan))
        changes.append((f"a checkpoint after every {length(best.interval_s)} of training", best))
        pause = replace(plan, checkpoint_s=plan.checkpoint_s * _TENTH)
        text = (
            f"checkpoints that pause training for {length(pause.checkpoint_s)} instead of {length(plan.checkpoint_s)}"
        )
        changes.append((f"{text}, after every {length(best_interval(pause))}", with_best_interval(pause)))
        restart = replace(plan, restart_s=plan.restart_s * _TENTH)
        changes.append((f"a restart in {length(restart.restart_s)} instead of {length(plan.restart_s)}", restart))
        if plan.nodes >= _HELPS_GROUPS:
            groups = replace(plan, groups=_HELPS_GROUPS, interval_s=0.0)
            changes.append((f"training in process, in {_HELPS_GROUPS} replicas of which one restarts", groups))
    spares = best_spares(plan)
    if spares != plan.spares:
        changes.append((f"{spares} spare nodes instead of {plan.spares}", replace(plan, spares=spares)))
    found = [Help(text, shares(other).goodput, shares(other).goodput - goodput) for text, other in changes]
    return tuple(sorted((one for one in found if one.gain >= _POINT), key=lambda one: -one.gain))


def with_best_interval(plan: Plan) -> Plan:
    """Return the plan with the best checkpoint interval."""
    return replace(plan, interval_s=best_interval(plan))


# -- words -----------------------------------------------------------------------------------------------------------


def render(found: Forecast) -> str:
    """Write a forecast for people."""
    plan = found.plan
    blocks = [
        [("", _subject(plan))],
        [("goodput", line) for line in _goodput_lines(found)],
        [("lost", line) for line in _loss_lines(found)],
        [("best", line) for line in _best_lines(found)],
        [("would help", f"{_points(one.gain)}  {one.change}") for one in found.helps],
    ]
    lines: list[str] = []
    for block in blocks:
        for number, (title, text) in enumerate(block):
            head = f"{title if number == 0 else '':<11}" if title else ""
            lines.append(f"{head}{text}".rstrip())
        if block:
            lines.append("")
    return "\n".join(lines[:-1])


def _subject(plan: Plan) -> str:
    gpus = f"{plan.nodes * plan.gpus_per_node:,} GPUs on {plan.nodes:,} node{'s' if plan.nodes > 1 else ''}"
    groups = f" in {plan.groups} replica groups" if plan.groups > 1 else ""
    return f"{gpus}{groups}; a failure every {length(plan.between_s)}"


def _goodput_lines(found: Forecast) -> list[str]:
    simulated, machines = found.simulated, found.machines
    lines = [
        f"{_percent(found.formula.goodput)}  by formula",
        f"{_percent(simulated.shares.goodput)}  by simulation: {simulated.runs} times {simulated.days:.3g} days, "
        f"{_percent(simulated.low).strip()} to {_percent(simulated.high).strip()}",
    ]
    if machines is not None:
        text = f"with Holdfast's own coordinator and agents: {machines.days:.3g} days, {machines.failures} failures"
        lines.append(f"{_percent(machines.shares.goodput)}  {text}")
    else:
        lines.append(f"{'':>7}  with Holdfast's own coordinator and agents: {found.machines_note}")
    return lines


def _loss_lines(found: Forecast) -> list[str]:
    plan, losses = found.plan, found.formula.losses
    failed = losses.get(Loss.REDONE, 0.0) / plan.rate
    recovery = plan.detect_s if plan.groups > 1 else plan.recovery_s
    words = {
        Loss.CHECKPOINTS: f"checkpoints: a pause of {length(plan.checkpoint_s)} after every {length(plan.interval_s)}",
        Loss.REDONE: f"work done again: {length(failed)} for each failure",
        Loss.RECOVERY: f"recovery: {length(recovery)} for each failure",
        Loss.ABSENT: f"replica groups that restart, each for {length(plan.restart_s)}",
        Loss.WAITING: f"waiting for a repaired node: more than {plan.spares} out at a time",
    }
    return [f"{_percent(share)}  {words[loss]}" for loss, share in losses.items() if share >= _POINT / 100]


def _best_lines(found: Forecast) -> list[str]:
    plan = found.plan
    lines = []
    if plan.groups == 1:
        often = f"after every {length(found.best_interval_s)} of training" if found.best_interval_s else "at any time"
        lines.append(f"a checkpoint {often}")
    spares = found.best_spares
    out = f"; {plan.out:.1f} are being repaired at a time" if plan.out else ""
    lines.append(f"{spares} spare node{'' if spares == 1 else 's'}{out}")
    if plan.spares:
        everything = f"all {plan.nodes + plan.spares:,} nodes with {plan.spares} spare"
        lines.append(f"of the time of {everything}, {_percent(found.of_all_nodes).strip()} is training")
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:5.1f} %"


def _points(share: float) -> str:
    return f"{100 * share:+5.1f} points"


def as_data(found: Forecast) -> dict[str, Any]:
    """Describe a forecast for programs; shares lie between 0 and 1, times are in seconds."""

    def estimated(estimate: Estimate | None) -> dict[str, Any] | None:
        if estimate is None:
            return None
        more = {name: getattr(estimate, name) for name in ("low", "high", "runs", "days", "failures")}
        return {"goodput": estimate.shares.goodput, **more, "losses": _plain(estimate.shares)}

    return {
        "plan": asdict(found.plan),
        "between_failures_s": found.plan.between_s,
        "formula": {"goodput": found.formula.goodput, "losses": _plain(found.formula)},
        "simulation": estimated(found.simulated),
        "machines": estimated(found.machines),
        "machines_note": found.machines_note,
        "best": {"interval_s": found.best_interval_s, "spares": found.best_spares},
        "goodput_of_all_nodes": found.of_all_nodes,
        "helps": [asdict(one) for one in found.helps],
    }


def _plain(found: Shares) -> dict[str, float]:
    return {loss.value: share for loss, share in found.losses.items()}
