"""`python -m holdfast.sim`: run the real machines under many seeds of simulated faults, or replay one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from holdfast.sim.batch import Summary, make, run_seeds, sum_up
from holdfast.sim.election import Election, simulate_election
from holdfast.sim.scenario import Scenario
from holdfast.sim.shrink import SWITCHES, Keep, apply, keep_all, shrink
from holdfast.sim.simulation import Outcome, Simulation
from holdfast.sim.takeover import TakeoverSimulation
from holdfast.sim.takeover_faults import make_takeover

NODES_DEFAULT = (5, 64)
WORKERS_DEFAULT = (2, 8)
TAKEOVER_DEFAULT = (2, 7)
#: Of a failed simulation's story, the last so many lines are printed.
_LINES_TOLD = 120
#: How often a terminal, and a log, is told how far we are.
_PROGRESS_S, _PROGRESS_LOG_S = 1.0, 15.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns 1 when a check has failed."""
    options = _parser().parse_args(argv)
    if options.election:
        return _elections(options)
    if options.takeover:
        options.nodes = options.nodes or TAKEOVER_DEFAULT
    options.nodes = options.nodes or (WORKERS_DEFAULT if options.training else NODES_DEFAULT)
    if options.seed is not None and options.takeover:
        return _replay_takeover(options)
    if options.seed is not None:
        return _replay(options)
    nodes_min, nodes_max = options.nodes
    seeds = range(options.start, options.start + options.seeds)
    _announce(seeds, "training" if options.training else "takeover" if options.takeover else "nodes", options)
    progress = _Progress(options.seeds)
    summary = run_seeds(
        seeds, nodes_min, nodes_max, options.jobs, progress, training=options.training, takeover=options.takeover
    )
    print(f"seeds {seeds.start} to {seeds.stop - 1}: {summary.describe()}")
    for outcome in summary.failures:
        print(f"seed {outcome.seed} failed: {outcome.check}: {outcome.sentence}")
    if summary.failed > len(summary.failures):
        print(f"{summary.failed - len(summary.failures)} more seeds failed")
    if options.takeover:
        if summary.failures:
            print(
                f"replay the first:  python -m holdfast.sim --takeover --seed {summary.failures[0].seed} --transcript"
            )
    elif summary.failures:
        _explain(summary.failures[0], options)
    return 1 if summary.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", "--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--nodes", type=_range, metavar="MIN:MAX", help="nodes, or workers, per simulation")
    parser.add_argument("--training", action="store_true", help="workers that train in process, not nodes")
    parser.add_argument("--takeover", action="store_true", help="nodes whose coordinator moves when its host is lost")
    parser.add_argument("--election", action="store_true", help="elections of the coordinator's node through etcd")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes to run them on")
    one = parser.add_argument_group("one seed")
    one.add_argument("--seed", type=int, help="replay this seed")
    one.add_argument("--transcript", action="store_true", help="print its whole story")
    one.add_argument("--keep-faults", type=_names, metavar="0,3,..", help="only these faults, by their place ('none')")
    one.add_argument("--keep-nodes", type=_names, metavar="n0,n2,..", help="only these nodes")
    one.add_argument("--limits", type=_range, metavar="MIN:MAX", help="how many nodes the run asks for")
    one.add_argument("--without", type=_names, default=(), metavar="WHAT,..", help=f"without {', '.join(SWITCHES)}")
    return parser


def _range(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    return int(least), int(most or least)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part and part != "none")


def _replay(options: argparse.Namespace) -> int:
    scenario = make(options.seed, *options.nodes, training=options.training)
    keep = keep_all(scenario)
    min_nodes, max_nodes = options.limits or (keep.min_nodes, keep.max_nodes)
    faults = keep.faults if options.keep_faults is None else tuple(map(int, options.keep_faults))
    nodes = options.keep_nodes or keep.nodes
    scenario = apply(scenario, Keep(faults, nodes, min_nodes, max_nodes, tuple(options.without)))
    simulation = Simulation(scenario, story=True)
    outcome = simulation.run()
    assert simulation.story is not None
    if options.transcript:
        print(_opening(scenario))
        print("\n".join(simulation.story.lines))
    print(
        f"seed {options.seed}: {len(scenario.nodes)} nodes, {len(scenario.faults)} faults, {outcome.events} events, "
        f"{outcome.rounds} rounds, story {simulation.story.digest()}"
    )
    if outcome.check is not None:
        print(f"failed: {outcome.check}: {outcome.sentence}\n{outcome.trace}")
        return 1
    return 0


def _replay_takeover(options: argparse.Namespace) -> int:
    scenario = make_takeover(options.seed, *options.nodes)
    simulation = TakeoverSimulation(scenario, story=True)
    outcome = simulation.run()
    assert simulation.story is not None
    if options.transcript:
        print(f"{scenario.size} nodes, lease {scenario.lease_s:g} s, recovery {scenario.settings.recovery_s:g} s")
        print("\n".join(f"{fault.at:9.3f}  {fault}" for fault in scenario.faults))
        print("\n".join(simulation.story.lines))
    print(f"seed {options.seed}: {outcome.events} events, {outcome.rounds} rounds, story {simulation.story.digest()}")
    if outcome.check is not None:
        print(f"failed: {outcome.check}: {outcome.sentence}\n{outcome.trace}")
        return 1
    return 0


def _elections(options: argparse.Namespace) -> int:
    """Run elections through etcd, or replay one."""
    if options.seed is None:
        seeds = range(options.start, options.start + options.seeds)
        _announce(seeds, "elections", options)
        summary = sum_up(seeds, simulate_election, options.jobs, _Progress(options.seeds))
        print(f"seeds {seeds.start} to {seeds.stop - 1}: {summary.describe()}")
        for outcome in summary.failures:
            print(f"seed {outcome.seed} failed: {outcome.check}: {outcome.sentence}")
        failed = summary.failures[0].seed if summary.failures else None
        if failed is not None:
            print(f"replay it: python -m holdfast.sim --election --seed {failed} --transcript")
        return 1 if summary.failed else 0
    election = Election(options.seed, story=True)
    outcome = election.run()
    assert election.story is not None
    if options.transcript:
        print("\n".join(election.story.lines))
    print(
        f"seed {options.seed}: {len(election.names)} processes, {outcome.rounds} seals, story {election.story.digest()}"
    )
    if outcome.check is not None:
        print(f"failed: {outcome.check}: {outcome.sentence}\n{outcome.trace}")
    return 0 if outcome.check is None else 1


def _explain(outcome: Outcome, options: argparse.Namespace) -> None:
    """Shrink a failure, tell its story and say how to see it again."""
    assert outcome.check is not None
    nodes = options.nodes
    scenario = make(outcome.seed, *nodes, training=options.training)
    keep = shrink(scenario, outcome.check)
    small = apply(scenario, keep)
    simulation = Simulation(small, story=True)
    again = simulation.run()
    assert simulation.story is not None
    print(f"\nseed {outcome.seed}, shrunk:\n{_opening(small)}")
    print("\n".join(simulation.story.lines[-_LINES_TOLD:]))
    print(f"failed: {again.check}: {again.sentence}\n{again.trace}")
    span = " --training" if options.training else ""
    if nodes != (WORKERS_DEFAULT if options.training else NODES_DEFAULT):
        span += f" --nodes {nodes[0]}:{nodes[1]}"
    command = f"python -m holdfast.sim --seed {outcome.seed}{span} --transcript"
    print(f"replay it whole:  {command}\nreplay it shrunk: {command} {keep.flags()}")


def _opening(scenario: Scenario) -> str:
    settings = scenario.settings
    lines = [
        f"run of {settings.min_nodes}:{settings.max_nodes} nodes, {settings.max_restarts} restarts, "
        f"lease {scenario.lease_s:g} s, admit {settings.admit}, recovery {settings.recovery_s:g} s",
        f"weather {scenario.weather}",
        *(f"node {node.name} on {node.host}, {node.workers} x {node.role}" for node in scenario.nodes),
        *([f"training {scenario.training}"] if scenario.training is not None else []),
        *(f"{fault.at:9.3f}  {fault}" for fault in scenario.faults),
        "",
    ]
    return "\n".join(lines)


def _announce(seeds: range, kind: str, options: argparse.Namespace) -> None:
    """Say on stderr what is about to be run, so that a log shows it even if it is cut off."""
    processes = "1 process" if options.jobs == 1 else f"{options.jobs} processes"
    print(f"{kind}: seeds {seeds.start} to {seeds.stop - 1} on {processes}", file=sys.stderr, flush=True)


class _Progress:
    """Says how far we are, and names every seed that fails at once."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._told_at = time.monotonic()
        self._in_place = sys.stderr.isatty()
        self._every_s = _PROGRESS_S if self._in_place else _PROGRESS_LOG_S
        self._failures = 0

    def __call__(self, summary: Summary) -> None:
        for outcome in summary.failures[self._failures :]:
            self._write(f"seed {outcome.seed} failed: {outcome.check}: {outcome.sentence}", ends=True)
        self._failures = len(summary.failures)
        now = time.monotonic()
        last = summary.seeds == self._seeds
        if now - self._told_at < self._every_s and not (last and self._in_place):
            return
        self._told_at = now
        rate = summary.seeds / max(summary.real_s, 1e-9)
        left = (self._seeds - summary.seeds) / rate
        self._write(
            f"{summary.seeds:,d} of {self._seeds:,d} seeds; {summary.failed} failed; {rate:.1f} a second; "
            f"{left:.0f} s left  ",
            ends=last or not self._in_place,
        )

    def _write(self, line: str, *, ends: bool) -> None:
        start = "\r" if self._in_place else ""
        sys.stderr.write(f"{start}{line}" + ("\n" if ends else ""))
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
