"""Many seeds on all cores, and what they came to."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from holdfast.sim.scenario import Scenario, make_scenario, make_training
from holdfast.sim.simulation import Outcome, simulate
from holdfast.sim.takeover import TakeoverSimulation
from holdfast.sim.takeover_faults import make_takeover

#: So many failing seeds are remembered.
FAILURES_KEPT_MAX = 20
_CHUNK = 8


@dataclass(slots=True)
class Summary:
    """What many simulations came to."""

    seeds: int = 0
    virtual_s: float = 0.0
    events: int = 0
    messages: int = 0
    rounds: int = 0
    failed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    failures: list[Outcome] = field(default_factory=list)
    real_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count one simulation."""
        self.seeds += 1
        self.virtual_s += outcome.virtual_s
        self.events += outcome.events
        self.messages += outcome.messages
        self.rounds += outcome.rounds
        for kind, count in outcome.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        if outcome.check is not None:
            self.failed += 1
            if len(self.failures) < FAILURES_KEPT_MAX:
                self.failures.append(outcome)

    def describe(self) -> str:
        """Say it in a few lines."""
        faults = "\n".join(f"    {count:9,d}  {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.seeds:,d} seeds, {self.failed:,d} failed; {self.virtual_s / 3600:,.1f} virtual hours, "
            f"{self.events:,d} events, {self.messages:,d} messages, {self.rounds:,d} rounds sealed; "
            f"{self.real_s:.0f} s, {self.seeds / max(self.real_s, 1e-9):.1f} seeds a second\n"
            f"faults injected:\n{faults}"
        )


def make(seed: int, nodes_min: int, nodes_max: int, *, training: bool = False) -> Scenario:
    """Draw what a seed stands for: nodes with workers, or workers that train in process."""
    draw = make_training if training else make_scenario
    return draw(seed, nodes_min, nodes_max)


def run_seed(seed: int, nodes_min: int, nodes_max: int, *, training: bool = False) -> Outcome:
    """Simulate one seed."""
    return simulate(make(seed, nodes_min, nodes_max, training=training))


def run_takeover(seed: int, nodes_min: int, nodes_max: int) -> Outcome:
    """Simulate one seed of nodes whose coordinator moves."""
    return TakeoverSimulation(make_takeover(seed, nodes_min, nodes_max)).run()


def run_seeds(
    seeds: range,
    nodes_min: int,
    nodes_max: int,
    jobs: int,
    progress: Callable[[Summary], None] | None = None,
    *,
    training: bool = False,
    takeover: bool = False,
) -> Summary:
    """Simulate many seeds, on `jobs` processes."""
    run: Callable[[int], Outcome] = partial(run_seed, nodes_min=nodes_min, nodes_max=nodes_max, training=training)
    if takeover:
        run = partial(run_takeover, nodes_min=nodes_min, nodes_max=nodes_max)
    return sum_up(seeds, run, jobs, progress)


def sum_up(
    seeds: range, run: Callable[[int], Outcome], jobs: int, progress: Callable[[Summary], None] | None = None
) -> Summary:
    """Run many seeds of anything, on `jobs` processes."""
    summary = Summary()
    began = time.monotonic()
    for outcome in _outcomes(seeds, run, jobs):
        summary.add(outcome)
        summary.real_s = time.monotonic() - began
        if progress is not None:
            progress(summary)
    summary.failures.sort(key=lambda outcome: outcome.seed)
    return summary


def _outcomes(seeds: range, run: Callable[[int], Outcome], jobs: int) -> Iterator[Outcome]:
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, seeds, _CHUNK)
