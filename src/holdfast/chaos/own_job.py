"""Striking a user's own job: fault after fault, each watched until the job has recovered from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.chaos.plan import LASTING, PlannedFault, choose_target
from holdfast.chaos.strikes import Strikes
from holdfast.chaos.targets import LOOK_S, Targets
from holdfast.chaos.verdict import INTERRUPTED, NOT_RECOVERED, SKIPPED, FaultResult, Look, Recovery, Report
from holdfast.errors import UnavailableError

#: How long the job steps undisturbed between a recovery and the next fault, at least.
CALM_S = 1.0

Tell = Callable[[str], None]


class OwnJob:
    """A session on one job of this user; `stop` ends it early, and may be called by a signal handler."""

    def __init__(self, targets: Targets, plan: Sequence[PlannedFault], seed: int, recover_within_s: float) -> None:
        self._targets = targets
        self._plan = plan
        self._seed = seed
        self._recover_within_s = recover_within_s
        self._strikes = Strikes(targets)
        self._results: list[FaultResult] = []
        self._look = targets.look()
        self._is_measured = self._look.is_measured
        self._stopping = False

    def stop(self) -> None:
        """Strike no more: `run` takes back what is still on and returns."""
        self._stopping = True

    def run(self, tell: Tell, *, wait_end: bool = False) -> Report:
        """Strike until the plan or the job is over; what is still on is taken back in any case."""
        try:
            self._strike_all(tell)
            while wait_end and self._goes_on():
                self._next_look()
        finally:
            self._undo(tell)
        return self._report()

    def _strike_all(self, tell: Tell) -> None:
        begun = time.monotonic()
        for fault in self._plan:
            not_before = max(begun + fault.at_s, time.monotonic() + CALM_S)
            while self._goes_on() and time.monotonic() < not_before:
                self._next_look()
            if not self._goes_on() or self._strike_one(fault, tell).outcome == NOT_RECOVERED:
                return

    def _strike_one(self, fault: PlannedFault, tell: Tell) -> FaultResult:
        """Strike, watch, undo; returns what came of it."""
        head = f"fault {fault.number} of {len(self._plan)}: {fault.kind}"
        target = choose_target(fault, self._targets.nodes(), self._targets.nodes_of_job)
        if isinstance(target, str):
            return self._skip(fault, target, head, tell)
        before = self._next_look()
        struck_at = time.time()
        try:
            dead = self._strikes.strike(fault, target)
        except UnavailableError as error:
            return self._skip(fault, str(error), head, tell)
        lasts = f", for {fault.for_s:g} s" if fault.for_s else ""
        tell(f"{head}, {target}{lasts}")
        recovery = Recovery(fault, str(target), struck_at, before, dead)
        self._watch(recovery, tell)
        return self._close(recovery, tell)

    def _watch(self, recovery: Recovery, tell: Tell) -> None:
        fault = recovery.fault
        undo_at = time.monotonic() + fault.for_s
        deadline = undo_at + self._recover_within_s
        is_on = fault.kind in LASTING
        while not recovery.is_over and not self._stopping and time.monotonic() < deadline:
            if is_on and time.monotonic() >= undo_at:
                look = self._next_look()
                self._undo(tell)
                recovery.undone(look)
                is_on = False
            recovery.take(self._next_look())

    def _close(self, recovery: Recovery, tell: Tell) -> FaultResult:
        result = recovery.result()
        if result.outcome == NOT_RECOVERED and self._stopping:
            result = replace(result, outcome=INTERRUPTED)
        elif result.outcome == NOT_RECOVERED:
            waited = f"not every rank made steps within {self._recover_within_s:g} s"
            ended = f"the job ended: {self._look.reason or self._look.outcome}"
            result = replace(result, reason=waited if self._look.is_live else ended)
        self._results.append(result)
        tell(f"  {result}")
        return result

    def _undo(self, tell: Tell) -> None:
        for sentence in self._strikes.undo():
            tell(f"not undone: {sentence}")

    def _goes_on(self) -> bool:
        return self._look.is_live and not self._stopping

    def _skip(self, fault: PlannedFault, reason: str, head: str, tell: Tell) -> FaultResult:
        result = FaultResult(fault, "", SKIPPED, reason)
        self._results.append(result)
        tell(f"{head}: {result}")
        return result

    def _next_look(self) -> Look:
        time.sleep(LOOK_S)
        self._look = self._targets.look()
        self._is_measured = self._is_measured or self._look.is_measured
        return self._look

    def _report(self) -> Report:
        orphans = self._targets.wait_orphans()
        look = self._targets.look()
        return Report(
            run=self._targets.name,
            seed=self._seed,
            results=tuple(self._results),
            job=look.outcome,
            reason=look.reason,
            steps=look.steps if self._is_measured else None,
            steps_redone=look.steps_redone if self._is_measured else None,
            orphans=orphans,
            was_interrupted=self._stopping,
        )
