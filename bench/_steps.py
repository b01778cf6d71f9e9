"""What the steps that hosts log say of a job: how long it stood still, what was done twice, what was missed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Samples in a step of scripts/reliable.py.
BATCH = 24
#: A host that steps has made this many steps in the last seconds.
STEADY_STEPS, STEADY_S = 5, 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step that a worker has done."""

    at: float
    pid: int
    number: int
    world: int
    samples: int
    spread: int

    @property
    def samples_off(self) -> int:
        """How many samples too few or too many the state has seen."""
        return abs(self.samples - (self.number + 1) * BATCH) + max(self.spread - 1, 0)


class StepBook:
    """The steps of every host, read again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.steps: dict[int, list[Step]] = {}

    def update(self) -> None:
        """Take in new lines; one that is half written is left for later."""
        for path in self._folder.glob("*.steps"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            mine = self.steps.setdefault(int(path.stem), [])
            for line in whole.decode().splitlines():
                at, *numbers = line.split()
                mine.append(Step(float(at), *map(int, numbers)))


def are_stepping(steps: Mapping[int, Sequence[Step]], hosts: Sequence[int], now: float, world: int | None) -> bool:
    """Whether every one of these hosts steps now, in a job of this size if one is given."""
    for host in hosts:
        recent = [step for step in steps.get(host, ())[-200:] if step.at > now - STEADY_S]
        if len(recent) < STEADY_STEPS or (world is not None and any(step.world != world for step in recent)):
            return False
    return True


def longest_pause_s(steps: Mapping[int, Sequence[Step]], hosts: Sequence[int], since: float, until: float) -> float:
    """Return the longest time in which one of these hosts made no step."""
    longest = 0.0
    for host in hosts:
        mine = sorted(step.at for step in steps.get(host, ()))
        begun = max((at for at in mine if at <= since), default=since)
        times = [begun, *(at for at in mine if since < at <= until)]
        longest = max([longest, *(later - sooner for sooner, later in itertools.pairwise(times))])
    return longest


def steps_twice(steps: Mapping[int, Sequence[Step]], since: float) -> int:
    """Return how many steps one host has done more than once, where the last time was after `since`."""
    most = 0
    for mine in steps.values():
        counts = Counter(step.number for step in mine)
        again = {step.number for step in mine if step.at > since and counts[step.number] > 1}
        most = max(most, len(again))
    return most


def both_stepped(
    steps: Mapping[int, Sequence[Step]], halves: tuple[list[int], list[int]], since: float, until: float
) -> int:
    """Return how many steps the slower half made in a time in which only one half should have."""
    made = [
        max((sum(since < step.at <= until for step in steps.get(host, ())) for host in half), default=0)
        for half in halves
    ]
    return min(made)
