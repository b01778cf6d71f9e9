"""Shrinking: take away from a failing scenario whatever it fails without.

What is left is named by a `Keep`: which faults and nodes stay, how many nodes the run asks for, and what is switched
off. It can be written on a command line, so a shrunk failure is replayed from its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.sim.scenario import Scenario, Weather
from holdfast.sim.simulation import Outcome, simulate

T = TypeVar("T")

RUNS_MAX = 600
#: What can be switched off as a whole.
SWITCHES = ("loss", "duplicate", "straggle", "reorder", "drift", "contagion", "slow-workers", "late-arrivals", "roles")


class Keep(msgspec.Struct, frozen=True):
    """What of a seed's scenario is kept."""

    faults: tuple[int, ...]
    nodes: tuple[str, ...]
    min_nodes: int
    max_nodes: int
    without: tuple[str, ...] = ()

    def flags(self) -> str:
        """Write it as options of `python -m holdfast.sim`."""
        faults = ",".join(map(str, self.faults)) or "none"
        without = f" --without {','.join(self.without)}" if self.without else ""
        nodes = ",".join(self.nodes)
        return f"--keep-faults {faults} --keep-nodes {nodes} --limits {self.min_nodes}:{self.max_nodes}{without}"


def keep_all(scenario: Scenario) -> Keep:
    """Keep everything."""
    settings = scenario.settings
    return Keep(
        tuple(range(len(scenario.faults))),
        tuple(node.name for node in scenario.nodes),
        settings.min_nodes,
        settings.max_nodes,
    )


def apply(scenario: Scenario, keep: Keep) -> Scenario:
    """Return the part of a scenario that is kept."""
    replace = msgspec.structs.replace
    faults = [
        replace(fault, nodes=tuple(name for name in fault.nodes if name in keep.nodes))
        for index, fault in enumerate(scenario.faults)
        if index in keep.faults and (not fault.nodes or any(name in keep.nodes for name in fault.nodes))
    ]
    nodes = [node for node in scenario.nodes if node.name in keep.nodes]
    scenario = replace(
        scenario,
        settings=replace(scenario.settings, min_nodes=keep.min_nodes, max_nodes=keep.max_nodes),
        nodes=tuple(nodes),
        faults=tuple(faults),
    )
    for switch in keep.without:
        scenario = _without(scenario, switch)
    return scenario


def _without(scenario: Scenario, switch: str) -> Scenario:
    replace = msgspec.structs.replace
    match switch:
        case "loss" | "duplicate" | "straggle" | "reorder":
            calm = {switch: getattr(Weather(), switch)}
            return replace(scenario, weather=replace(scenario.weather, **calm))
        case "drift":
            nodes = tuple(replace(node, clock_rate=1.0, clock_offset_s=0.0) for node in scenario.nodes)
            return replace(scenario, nodes=nodes, coordinator_rate=1.0, coordinator_offset_s=0.0)
        case "contagion":
            return replace(scenario, contagion=0.0)
        case "slow-workers":
            return replace(scenario, start_s=0.0, stop_s=0.0)
        case "late-arrivals":
            return replace(scenario, nodes=tuple(replace(node, arrives_at=0.0) for node in scenario.nodes))
        case "roles":
            return replace(scenario, nodes=tuple(replace(node, role="trainer", workers=1) for node in scenario.nodes))
        case _:
            raise ValueError(f"cannot switch off '{switch}'; there is {', '.join(SWITCHES)}")


def shrink(
    scenario: Scenario, check: str, run: Callable[[Scenario], Outcome] = simulate, runs_max: int = RUNS_MAX
) -> Keep:
    """Find a small part of a scenario that still fails the same check."""
    return _Shrinker(scenario, check, run, runs_max).shrink()


class _Shrinker:
    def __init__(self, scenario: Scenario, check: str, run: Callable[[Scenario], Outcome], runs_max: int) -> None:
        self._scenario = scenario
        self._check = check
        self._run = run
        self._runs_left = runs_max
        self._keep = keep_all(scenario)

    def shrink(self) -> Keep:
        """Take away until nothing more can go."""
        before: Keep | None = None
        while before != self._keep and self._runs_left > 0:
            before = self._keep
            self._drop_faults()
            self._drop_nodes()
            for switch in SWITCHES:
                if switch not in self._keep.without:
                    self._try(msgspec.structs.replace(self._keep, without=(*self._keep.without, switch)))
        return self._keep

    def _try(self, keep: Keep) -> bool:
        """Keep less if it still fails."""
        if self._runs_left <= 0:
            return False
        self._runs_left -= 1
        if self._run(apply(self._scenario, keep)).check != self._check:
            return False
        self._keep = keep
        return True

    def _drop_faults(self) -> None:
        self._drop(lambda: self._keep.faults, lambda left: self._try(msgspec.structs.replace(self._keep, faults=left)))

    def _drop_nodes(self) -> None:
        self._drop(lambda: self._keep.nodes, self._try_nodes)

    def _try_nodes(self, left: tuple[str, ...]) -> bool:
        keep = self._keep
        if not left:
            return False
        gone = len(keep.nodes) - len(left)
        least = max(keep.min_nodes - gone, 1)
        fewer = msgspec.structs.replace(keep, nodes=left, min_nodes=least, max_nodes=max(keep.max_nodes - gone, least))
        return self._try(fewer) or self._try(msgspec.structs.replace(keep, nodes=left))

    def _drop(self, items: Callable[[], Sequence[T]], attempt: Callable[[tuple[T, ...]], bool]) -> None:
        """Try to go without halves, then quarters, and so on down to single ones."""
        size = len(items())
        while size >= 1:
            start = 0
            while start < len(items()):
                now = items()
                if not attempt((*now[:start], *now[start + size :])):
                    start += size
            size //= 2
