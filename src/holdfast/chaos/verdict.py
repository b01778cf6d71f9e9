"""Whether a user's job has recovered from a fault, how long that took, and what a whole session has shown. Pure.

The job is looked at again and again. A look has what the journals, the heartbeats and the processes of this host say.
A job has recovered when every rank that belongs to it makes steps again. A rank whose process is the same as before
must make two: the first may have been under way when the fault struck. Where the program sends no heartbeats, live
processes are all that can be judged, and the report says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.chaos.plan import LASTING, TAKE_NODES, PlannedFault
from holdfast.quantities import count, length

#: How long the job may take to be as large as before once a lasting fault is undone; then it counts as settled.
SETTLE_S = 10.0
#: How many steps a worker that lives on must make: the first may have been under way.
STEPS_AGAIN = 2


@dataclass(frozen=True, slots=True)
class RankSeen:
    """One rank: its process, whether it lives and is not stopped, and the steps it has made."""

    pid: int
    is_running: bool
    steps: int = 0
    stepped_at: float | None = None
    #: The numbers of its first and its latest step, where the program numbers them.
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen of a job at one moment; times are the wall clock of this host."""

    at: float
    #: running, succeeded, failed, signalled or gone.
    outcome: str
    reason: str = ""
    round: int = 0
    ranks: Mapping[int, RankSeen] = field(default_factory=dict)
    #: Agents of this host that take part and have no workers yet.
    agents_waiting: int = 0
    steps: int = 0
    steps_redone: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the job goes on."""
        return self.outcome == "running"

    @property
    def is_measured(self) -> bool:
        """Whether the program sends heartbeats."""
        return any(rank.stepped_at is not None for rank in self.ranks.values())


def stepping_at(look: Look, before: Look, since: float, dead: frozenset[int], *, is_measured: bool) -> float | None:
    """Return when the last rank made steps again after `since`; None while one of them has not."""
    ranks = look.ranks.values()
    if not ranks or look.agents_waiting or any(rank.pid in dead or not rank.is_running for rank in ranks):
        return None
    if not is_measured:
        return look.at
    earlier = {rank.pid: rank.steps for rank in before.ranks.values()}
    latest = since
    for rank in ranks:
        wanted = earlier[rank.pid] + STEPS_AGAIN if rank.pid in earlier else 1
        if rank.stepped_at is None or rank.stepped_at <= since or rank.steps < wanted:
            return None
        latest = max(latest, rank.stepped_at)
    return latest


def steps_lost(before: Look, after: Look) -> int | None:
    """Return how many steps that were made before a fault its new workers begin with again; None if unknown."""
    made = [rank.last_step for rank in before.ranks.values() if rank.last_step is not None]
    earlier = {rank.pid for rank in before.ranks.values()}
    firsts = [rank.first_step for rank in after.ranks.values() if rank.pid not in earlier]
    known = [first for first in firsts if first is not None]
    if not made or len(known) < len(firsts):
        return None
    return max(max(made) + 1 - min(known), 0) if known else 0


@dataclass(slots=True)
class Recovery:
    """One fault that has struck: `take` looks until it is over."""

    fault: PlannedFault
    target: str
    struck_at: float
    before: Look
    #: Processes that were killed: a rank that still has one of them has not been replaced.
    dead: frozenset[int] = frozenset()
    recovered_at: float | None = None
    settled_at: float | None = None
    after: Look | None = None
    steps_lost: int | None = None
    is_measured: bool = field(default=False)
    _undone_at: float | None = None
    _at_undo: Look | None = None

    def __post_init__(self) -> None:
        self.is_measured = self.before.is_measured

    def undone(self, look: Look) -> None:
        """The fault has been taken back; `look` was taken before that."""
        self._undone_at, self._at_undo = look.at, look

    def take(self, look: Look) -> None:
        """Take the next look."""
        self.after = look
        if not look.is_live:
            return
        if self.recovered_at is None and self._can_be_told(look):
            self.recovered_at = self._stepping(look, self.before, self.struck_at)
            self.steps_lost = None if self.recovered_at is None else steps_lost(self.before, look)
        if self._undone_at is not None and self._at_undo is not None and self.settled_at is None:
            at = self._stepping(look, self._at_undo, self._undone_at)
            if at is not None and (len(look.ranks) >= len(self.before.ranks) or look.at >= self._undone_at + SETTLE_S):
                self.settled_at = at

    @property
    def is_over(self) -> bool:
        """Whether the job steps again, and no part of the fault is still to come."""
        if self.after is not None and not self.after.is_live:
            return True
        return self.recovered_at is not None and (self.fault.kind not in LASTING or self.settled_at is not None)

    def result(self) -> FaultResult:
        """Return what came of it."""
        after = self.after or self.before
        if self.recovered_at is not None:
            outcome = RECOVERED
        else:
            outcome = NOT_RECOVERED if after.is_live or after.outcome != "succeeded" else ENDED
        return FaultResult(
            self.fault,
            self.target,
            outcome,
            recovered_s=None if self.recovered_at is None else self.recovered_at - self.struck_at,
            settled_s=None if self.settled_at is None or self._undone_at is None else self.settled_at - self._undone_at,
            ranks_before=len(self.before.ranks),
            ranks_after=len(after.ranks),
            steps_lost=self.steps_lost,
            is_measured=self.is_measured,
        )

    def _can_be_told(self, look: Look) -> bool:
        """Whether steps, or live processes, mean anything yet.

        Where a node was taken, the others may make steps until they hear of it: they have recovered in a later round.
        Where nothing dies and the program sends no heartbeats, live processes mean nothing while the fault lasts.
        """
        has_regrouped = look.round != self.before.round
        if self.fault.kind in TAKE_NODES:
            return has_regrouped
        return self.is_measured or self.fault.kind not in LASTING or self._undone_at is not None or has_regrouped

    def _stepping(self, look: Look, before: Look, since: float) -> float | None:
        return stepping_at(look, before, since, self.dead, is_measured=self.is_measured)


#: What became of a fault.
RECOVERED, NOT_RECOVERED, SKIPPED = "recovered", "not recovered", "skipped"
ENDED, INTERRUPTED = "the job ended first", "interrupted"


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What came of one fault."""

    fault: PlannedFault
    target: str
    outcome: str
    reason: str = ""
    recovered_s: float | None = None
    #: From the end of a lasting fault to the steps of all ranks.
    settled_s: float | None = None
    ranks_before: int = 0
    ranks_after: int = 0
    steps_lost: int | None = None
    is_measured: bool = True

    def to_json(self) -> dict[str, Any]:
        """Describe it as plain data."""
        return {
            **self.fault.to_json(),
            "target": self.target,
            "outcome": self.outcome,
            "reason": self.reason,
            "recovered_s": _rounded(self.recovered_s),
            "settled_s": _rounded(self.settled_s),
            "ranks_before": self.ranks_before,
            "ranks_after": self.ranks_after,
            "steps_lost": self.steps_lost,
            "steps_seen": self.is_measured,
        }

    def __str__(self) -> str:
        if self.outcome == SKIPPED:
            return f"skipped: {self.reason}"
        if self.recovered_s is None:
            return f"{self.outcome}{f': {self.reason}' if self.reason else ''}"
        verb = "step again" if self.is_measured else "live again (no heartbeat was seen, so steps are not judged)"
        parts = [f"recovered in {length(self.recovered_s)}: {count(self.ranks_after, 'rank')} {verb}"]
        if self.ranks_after != self.ranks_before:
            parts.append(f"{self.ranks_before} before")
        if self.settled_s is not None:
            what = "all stepped" if self.is_measured else "all lived"
            parts.append(f"{what} {length(self.settled_s)} after the fault was undone")
        if self.steps_lost:
            parts.append(f"{count(self.steps_lost, 'step')} lost")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Report:
    """What a whole session has shown."""

    run: str
    seed: int
    results: tuple[FaultResult, ...]
    job: str
    reason: str = ""
    steps: int | None = None
    steps_redone: int | None = None
    #: Processes of killed agents that live on, by pid.
    orphans: tuple[int, ...] = ()
    was_interrupted: bool = False

    @property
    def struck(self) -> list[FaultResult]:
        """The faults that were brought about."""
        return [result for result in self.results if result.outcome != SKIPPED]

    @property
    def is_good(self) -> bool:
        """Whether the job has recovered from everything, has not failed, and has left no process behind."""
        ended_well = self.job in ("running", "succeeded")
        return ended_well and not self.orphans and all(each.outcome != NOT_RECOVERED for each in self.struck)

    def to_json(self) -> dict[str, Any]:
        """Describe it as plain data."""
        times = recovery_times(self.results)
        return {
            "run": self.run,
            "seed": self.seed,
            "good": self.is_good,
            "interrupted": self.was_interrupted,
            "faults": [result.to_json() for result in self.results],
            "struck": len(self.struck),
            "recovered": len(times),
            "median_s": _rounded(statistics.median(times)) if times else None,
            "worst_s": _rounded(max(times)) if times else None,
            "steps": self.steps,
            "steps_lost": sum(each.steps_lost or 0 for each in self.results),
            "steps_redone": self.steps_redone,
            "orphans": list(self.orphans),
            "job": self.job,
            "reason": self.reason,
        }

    def lines(self) -> list[str]:
        """Return the report for a person."""
        times = recovery_times(self.results)
        skipped = len(self.results) - len(self.struck)
        first = f"{count(len(self.struck), 'fault')} on run {self.run} with seed {self.seed}: {len(times)} recovered"
        if times:
            slowest = max((each for each in self.results if each.recovered_s is not None), key=_recovered_s)
            first += f", median {length(statistics.median(times))}, slowest {length(max(times))} ({slowest.fault.kind})"
        lines = [f"{first}; {skipped} skipped" if skipped else first]
        failed = [each for each in self.struck if each.outcome == NOT_RECOVERED]
        lines += [f"not recovered: fault {each.fault.number}, {each.fault} of {each.target}" for each in failed]
        if self.steps is None:
            lines.append("steps: unknown, the program does not call holdfast.heartbeat(step)")
        else:
            lost = sum(each.steps_lost or 0 for each in self.results)
            lines.append(
                f"steps: {self.steps} reached, {lost} lost to faults, {self.steps_redone or 0} made twice so far"
            )
        pids = f": pid {', '.join(map(str, self.orphans))}" if self.orphans else ""
        lines.append(f"processes left behind by killed agents: {len(self.orphans)}{pids}")
        job = {"running": "goes on", "gone": "is over: all its agents on this host are gone"}.get(self.job, self.job)
        lines.append(f"the job: {job}{f' ({self.reason})' if self.reason and self.job == 'failed' else ''}")
        return lines


def recovery_times(results: Sequence[FaultResult]) -> list[float]:
    """Return how long each recovery took."""
    return [each.recovered_s for each in results if each.recovered_s is not None]


def _recovered_s(result: FaultResult) -> float:
    return result.recovered_s or 0.0


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
