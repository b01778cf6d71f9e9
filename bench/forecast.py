"""`holdfast forecast` beside published figures, and how long a simulated day takes with Holdfast's own machines.

    python -m bench.forecast            compare, simulate a day, write docs/FORECAST.md
    python -m bench.forecast --full     also a day of 100,000 ranks, and the whole training of Llama 3
    python -m bench.forecast --page     only write docs/FORECAST.md anew, from bench/results.json

The comparison is computed anew each time and is the same each time; a test holds it and the page to that. Seconds are
CPU time of one core, which other processes on the machine hardly change.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean

from bench.harness import Case, Results, load, number, save
from holdfast.forecast.fleet import Fleet
from holdfast.forecast.formula import best_interval, published, shares
from holdfast.forecast.plan import DAY_S, Noticed, Plan
from holdfast.forecast.simulate import simulate

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).parent.parent / "docs" / "FORECAST.md"
HOUR_S, MINUTE_S = 3600.0, 60.0
#: How far a forecast may lie from what was published, in points.
POINTS = 2.0
#: How many failures a comparison draws, in so many simulations.
FAILURES, RUNS = 8_000, 8

#: Llama 3: 405e9 parameters, 16 bytes of state each, storage that takes 2 TB a second.
LLAMA_PAUSE_S = 405e9 * 16 / 2e12
LLAMA_INTERRUPTIONS, LLAMA_DAYS = 466, 54
#: RSC-1: failures of a node in a day.
RSC_RATE = 6.5e-3
#: torchft: kills, steps that were tried, and hours, with a kill every minute.
TORCHFT_KILLS, TORCHFT_STEPS, TORCHFT_HOURS = 1_100, 6_249, 19


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published figure, and the plan that stands for it."""

    name: str
    plan: Plan
    #: In percent; a figure "over 90" is compared as 90.
    published: float
    published_as: str
    inputs: str
    #: Whether we claim to come within two points of it; where not, why not.
    beyond: str = ""


def comparisons() -> list[Comparison]:
    """Return everything that is compared."""
    return [_llama(), *_rsc(), *_ft_hsdp(), *_torchft()]


def _llama() -> Comparison:
    between_s = LLAMA_DAYS * DAY_S / LLAMA_INTERRUPTIONS
    plan = _at_best(
        Plan(
            2048,
            2048 * between_s,
            checkpoint_s=LLAMA_PAUSE_S,
            detect_s=MINUTE_S,
            restart_s=9 * MINUTE_S,
            needs_repair=0,
            noticed=Noticed.AT_END,
        )
    )
    inputs = (
        "466 interruptions in 54 days; 6.5 TB of state at 2 TB/s is a pause of 3.2 s; 10 min for a recovery, which is "
        "what FT-HSDP reports for six times the GPUs"
    )
    return Comparison("Llama 3, 16,384 GPUs", plan, 90.0, "over 90 %", inputs)


def _rsc() -> Iterator[Comparison]:
    for gpus in (1_024, 4_096, 16_384, 131_072):
        nodes = gpus // 8
        plan = Plan(
            nodes,
            DAY_S / RSC_RATE,
            checkpoint_s=30.0,
            detect_s=0.0,
            restart_s=5 * MINUTE_S,
            needs_repair=0,
            noticed=Noticed.AT_END,
        )
        plan = _at_best(plan)
        told = 100 * published(plan)
        beyond = "the formula is one for small losses" if gpus > 16_384 else ""
        inputs = f"a failure every {plan.between_s / HOUR_S:.3g} h; recovery 5 min, pause 30 s"
        yield Comparison(f"RSC-1's formula, {gpus:,} GPUs", plan, told, f"{told:.1f} %", inputs, beyond)


def _ft_hsdp() -> Iterator[Comparison]:
    nodes = 98_304 // 8
    plan = Plan(nodes, nodes * 18 * MINUTE_S, checkpoint_s=0.0, needs_repair=0, noticed=Noticed.AT_END)
    whole = replace(plan, detect_s=MINUTE_S, restart_s=9 * MINUTE_S)
    yield Comparison(
        "FT-HSDP, all 98,304 GPUs restart",
        whole,
        44.0,
        "44 %",
        "a failure every 18 min, each stops all for 10 min",
    )
    groups = replace(plan, groups=12, detect_s=3 * MINUTE_S, restart_s=10 * MINUTE_S)
    yield Comparison(
        "FT-HSDP, one of 12 replicas restarts",
        groups,
        80.0,
        "80 %",
        "the same failures; each stops all for 3 min, and its replica for 10 min more",
    )


def _torchft() -> Iterator[Comparison]:
    every_s = TORCHFT_HOURS * HOUR_S / TORCHFT_KILLS
    step_s = TORCHFT_HOURS * HOUR_S / TORCHFT_STEPS
    rows = [(every_s, 29.6, 81.2, "a kill every 62 s", ""), (15.0, 18.9, 13.4, "a kill every 15 s", _DENSE)]
    for kill_s, present, told, when, beyond in rows:
        plan = Plan(
            30,
            30 * kill_s,
            gpus_per_node=10,
            groups=30,
            checkpoint_s=0.0,
            detect_s=step_s,
            restart_s=(30 - present) * kill_s,
            needs_repair=0,
            noticed=Noticed.AT_END,
        )
        inputs = f"{when}, each costs one step of {step_s:.1f} s; {present} of 30 groups present"
        yield Comparison(f"torchft, 300 GPUs, {when}", plan, told, f"{told} %", inputs, beyond)


_DENSE = "failures overlap, and a step that is tried again is hit again"


def _at_best(plan: Plan) -> Plan:
    return replace(plan, interval_s=best_interval(plan))


@cache
def outcomes() -> list[tuple[Comparison, float, float]]:
    """Return every comparison with our goodput by formula and by simulation, in percent."""
    return [(each, 100 * shares(each.plan).goodput, 100 * simulated(each.plan)) for each in comparisons()]


def simulated(plan: Plan) -> float:
    """Return the mean goodput of some simulations."""
    days = FAILURES / RUNS * plan.between_s / DAY_S
    found = []
    for seed in range(RUNS):
        rng = Random(seed)
        found.append(simulate(plan, days, rng.expovariate, rng.random).shares().goodput)
    return fmean(found)


# -- time ------------------------------------------------------------------------------------------------------------


def simulated_day(nodes: int, failures: float, days: float = 1.0, *, skip: bool = True) -> tuple[float, Fleet]:
    """Return the CPU seconds for simulated days with so many failures each, and the fleet."""
    plan = _at_best(Plan(nodes, nodes * DAY_S / failures, checkpoint_s=3.0, restart_s=540.0, detect_s=60.0, spares=100))
    fleet = Fleet(plan, Random(1), skip=skip)
    begun = time.process_time()
    fleet.run(days)
    return time.process_time() - begun, fleet


def day_case(ranks: int, failures: float) -> Case:
    """Return how long a day with so many failures takes."""
    seconds, fleet = simulated_day(ranks // 8, failures)
    goodput = 100 * fleet.account.shares().goodput
    note = f"{fleet.account.failures} failures, {number(fleet.toll.messages)} messages, goodput {goodput:.1f} %"
    return Case.seen(f"a simulated day of {ranks:,} ranks on {ranks // 8:,} nodes", seconds, "s", note)


def beats_case(ranks: int, simulated_s: float) -> Case:
    """Return how long such a day would take if no beat were skipped, from a short piece of it."""
    seconds, fleet = simulated_day(ranks // 8, 1e-9, simulated_s / DAY_S, skip=False)
    hours = seconds / simulated_s * DAY_S / HOUR_S
    note = f"from {simulated_s:g} s without a failure, {number(fleet.toll.messages)} messages"
    return Case.seen(f"... of {ranks:,} ranks, if beats were not skipped", hours, "h", note)


def llama_case() -> Case:
    """Return what the machines make of the whole training of Llama 3."""
    plan = _llama().plan
    nodes = plan.nodes // 8  # the same failures among an eighth of the nodes: the goodput is the same
    begun = time.process_time()
    account = Fleet(replace(plan, nodes=nodes, node_mtbf_s=nodes * plan.between_s), Random(3)).run(LLAMA_DAYS)
    note = f"{account.failures} failures in 54 days, {number(time.process_time() - begun)} s"
    goodput = 100 * account.shares().goodput
    return Case.seen(f"Llama 3, with Holdfast's own machines on {nodes} nodes: goodput", goodput, "%", note)


def run(full: bool) -> Results:
    """Compare, and measure how long days take."""
    cases = [comparison_case(*each) for each in outcomes()]
    cases += [day_case(8_192, 8)]
    if full:
        cases += [day_case(100_000, 80), beats_case(100_000, 10), llama_case()]
    return Results("forecasts beside published figures, and seconds for a simulated day", cases, "published")


def comparison_case(each: Comparison, formula: float, simulation: float) -> Case:
    """Return a comparison as a row."""
    ok = None if each.beyond else is_close(each, formula, simulation)
    note = f"by simulation {simulation:.1f} %; {each.inputs}" + (f"; not claimed: {each.beyond}" if each.beyond else "")
    target = "" if each.beyond else f"within {POINTS:g} points"
    return Case(each.name, round(formula, 1), "%", round(each.published, 1), target, ok, note=note)


def is_close(each: Comparison, formula: float, simulation: float) -> bool:
    """Whether both ways come within two points of what was published."""
    return max(abs(formula - each.published), abs(simulation - each.published)) <= POINTS


# -- the page --------------------------------------------------------------------------------------------------------


def page(results: Results | None) -> str:
    """Return docs/FORECAST.md."""
    rows = []
    for each, formula, simulation in outcomes():
        figures = f"{each.published_as} | {formula:.1f} % | {simulation:.1f} %"
        rows.append(f"| {each.name} | {figures} | {_verdict(each, formula, simulation)} | {each.inputs} |")
    at_once = replace(next(iter(_ft_hsdp())).plan, noticed=Noticed.AT_ONCE)
    llama_fast = replace(_llama().plan, restart_s=4 * MINUTE_S)
    timed = [case for case in results.cases if case.name.startswith(_TIMED)] if results else []
    times = [f"| {case.name} | {number(case.ours or 0)} {case.unit} | {case.note} |" for case in timed]
    parts = [
        _INTRO,
        "## Beside published figures\n",
        "| | published | by formula | by simulation | | from |\n|---|--:|--:|--:|---|---|",
        "\n".join(rows),
        _SOURCES.format(at_once=100 * shares(at_once).goodput, llama_fast=100 * shares(llama_fast).goodput),
        "## With Holdfast's own machines\n",
        _MACHINES,
        "| | time on one core, or goodput | |\n|---|--:|---|",
        "\n".join(times),
        _LIMITS,
    ]
    return "\n".join(parts)


#: How the rows begin that were measured, not computed.
_TIMED = ("a simulated day", "... of", "Llama 3, with")

_INTRO = """\
# Forecast

`python -m bench.forecast` writes this page; do not edit it.

`holdfast forecast` says how much of its time a job will train, what the rest is lost to, how often it should save a
checkpoint, how many nodes should stand by, and what would help most:

```
holdfast forecast --gpus 16384 --mtbf-node 50000h --checkpoint 60s
```

Three ways lead to the figures, and they should agree:

- **By formula**: failures come at random at a steady rate *r*. A segment of training *d* and its checkpoint pause
  *w* is finished or begun again, so it takes (exp(*r*(*d*+*w*)) - 1)/*r*. The share of time outside recoveries of
  length *u* is exp(-*ru*) if a failure during a recovery is noticed at once and begins it again, and 1 - *ru* if it
  is noticed at the end and costs another one (`--noticed at-end`). For small losses both come to Meta's formula for
  RSC-1, (1 - *r*(*u* + *d*/2))/(1 + *w*/*d*). Nodes in repair follow a Poisson distribution; when more are out than
  there are spares, the job waits. The best number of spares gives the most training for all nodes, spares included.
- **By simulation**: failures, recoveries and repairs are drawn one by one, over many days.
- **With Holdfast's own machines**: the coordinator, members and agents that run in production decide what happens
  between a failure and the next start, in simulated time.
"""

_SOURCES = """
Each forecast must come within two points of the published figure, by formula and by simulation; a test checks it.
These figures count every failure with its whole recovery, so they are compared with `--noticed at-end`. Holdfast
notices a failure during a recovery at once: with the same times, the first FT-HSDP row would be {at_once:.1f} %.

How much each row proves: "over 90 %" is a bound, and Llama 3's recovery time is our assumption; with 5 min instead of
10 the forecast is {llama_fast:.1f} %. The RSC-1 rows compare with a formula, not with a measured job. The FT-HSDP and
torchft rows use times that were published beside the result, so they check how the forecast puts them together. All
published figures were taken from summaries of the sources below.

Sources: Llama 3, arXiv 2407.21783 (interruptions, storage, effective time). RSC-1, Meta's research cluster: 6.5
failures in 1,000 node-days, and the formula. FT-HSDP, arXiv 2602.00277. torchft, PyTorch blog of 20 June 2025:
1,100 kills and 6,249 steps in 19 hours, which gives the length of a step.
"""

_MACHINES = """\
Between failures the nodes only exchange beats, and that time is skipped. A test lives through a small cluster's
days with and without skipping, and finds the same goodput.
"""

_LIMITS = """
## What it does not know

- All nodes fail at the same rate. Real nodes do not: a few of them cause most failures. That changes the number of
  nodes in repair little, and the goodput of a large job hardly at all.
- Failures do not come together, as they do when a switch fails.
- A slow node costs nothing. Nodes that are repaired take the same time each.
- Jobs that continue with fewer nodes are not modelled; the job waits for a node instead.
- The time that the coordinator itself needs for a round is left out: [BENCHMARKS.md](BENCHMARKS.md#coordinator) has
  it.
"""


def _verdict(each: Comparison, formula: float, simulation: float) -> str:
    if each.beyond:
        return f"not claimed: {each.beyond}"
    off = max(abs(formula - each.published), abs(simulation - each.published))
    return f"within {off:.1f} points" if off <= POINTS else f"**off by {off:.1f} points**"


def write_page() -> None:
    """Write the page from what is known."""
    PAGE.write_text(page(load(RESULTS).get("forecast")))


def main(argv: list[str] | None = None) -> int:
    """Compare, measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.forecast", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also a day of 100,000 ranks: minutes")
    parser.add_argument("--page", action="store_true", help="only write docs/FORECAST.md")
    options = parser.parse_args(argv)
    ok = True
    if not options.page:
        results = run(options.full)
        print(results)
        save(RESULTS, {"forecast": results})
        ok = results.ok
    write_page()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
