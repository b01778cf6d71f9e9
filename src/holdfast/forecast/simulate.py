"""Goodput by simulation: failures, recoveries and repairs drawn one by one, without the machines. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from holdfast.forecast.plan import DAY_S, Account, Loss, Noticed, Plan

#: Draws a time between two failures whose mean is 1 / rate: `Random.expovariate`.
Draw = Callable[[float], float]


def simulate(plan: Plan, days: float, draw: Draw, chance: Callable[[], float]) -> Account:
    """Live through so many days; `draw` is `Random.expovariate`, `chance` a number from 0 to 1."""
    return _Groups(plan, draw, chance).run(days) if plan.groups > 1 else _Whole(plan, draw, chance).run(days)


class Repairs:
    """Nodes that are out, and when each is back."""

    def __init__(self, plan: Plan, chance: Callable[[], float]) -> None:
        self._plan = plan
        self._chance = chance
        self._back_at: list[float] = []

    def fail(self, now: float) -> bool:
        """Take a node out if its failure needs a repair; return whether it does."""
        broken = self._chance() < self._plan.needs_repair
        if broken:
            heapq.heappush(self._back_at, now + self._plan.repair_s)
        return broken

    def missing(self, now: float) -> int:
        """Return how many nodes no spare stands in for."""
        while self._back_at and self._back_at[0] <= now:
            heapq.heappop(self._back_at)
        return max(0, len(self._back_at) - self._plan.spares)

    def next_back(self, now: float) -> float:
        """Return when the next node is back; call it only while one is missing."""
        self.missing(now)
        return self._back_at[0]


class _Whole:
    """All nodes restart together."""

    def __init__(self, plan: Plan, draw: Draw, chance: Callable[[], float]) -> None:
        self._plan = plan
        self._draw = draw
        self._repairs = Repairs(plan, chance)
        self._account = Account()
        self._now = 0.0
        self._end = 0.0
        #: Failures come whatever the job does: during a recovery, too.
        self._fails_at = 0.0

    def run(self, days: float) -> Account:
        self._end = days * DAY_S
        self._fails_at = self._draw(self._plan.rate)
        while self._now < self._end:
            began, self._now = self._now, min(self._fails_at, self._end)
            fails = self._fails_at <= self._end
            self._account.trained(self._now - began, self._plan, kept=not fails)
            if fails:
                self._fail()
                self._recover()
        return self._account

    def _fail(self) -> None:
        self._account.failures += 1
        self._repairs.fail(self._fails_at)
        self._fails_at += self._draw(self._plan.rate)

    def _pass(self, loss: Loss, until: float) -> None:
        until = min(until, self._end)
        self._account.lose(loss, max(0.0, until - self._now))
        self._now = max(self._now, until)

    def _recover(self) -> None:
        """Wait for nodes, then restart, until no failure is left to be answered."""
        pending = 1
        while pending and self._now < self._end:
            while self._repairs.missing(self._now) and self._now < self._end:
                # A failure among the nodes that wait for another takes one more of them out.
                self._pass(Loss.WAITING, min(self._repairs.next_back(self._now), self._fails_at))
                if self._fails_at <= self._now:
                    self._fail()
            done_at = self._now + self._plan.recovery_s
            if self._plan.noticed is Noticed.AT_ONCE:
                again = self._fails_at < done_at
                self._pass(Loss.RECOVERY, min(self._fails_at, done_at))
                if again and self._now < self._end:
                    self._fail()
                    continue
            else:
                while self._fails_at < min(done_at, self._end):
                    self._fail()
                    pending += 1
                self._pass(Loss.RECOVERY, done_at)
            pending -= 1


class _Groups:
    """Replica groups: only the one that failed restarts."""

    def __init__(self, plan: Plan, draw: Draw, chance: Callable[[], float]) -> None:
        self._plan = plan
        self._draw = draw
        self._chance = chance
        self._repairs = Repairs(plan, chance)
        self._account = Account()
        self._back_at = [0.0] * plan.groups
        self._stalled_until = 0.0

    def run(self, days: float) -> Account:
        plan, end, now = self._plan, days * DAY_S, 0.0
        fails_at = self._draw(plan.rate)
        while now < end:
            changes = [self._stalled_until, *self._back_at, fails_at, end]
            until = min(when for when in changes if when > now)
            if self._repairs.missing(now):
                until = min(until, self._repairs.next_back(now))
            self._spend(now, until)
            now = until
            if now >= fails_at:
                self._fail(now)
                fails_at = now + self._draw(plan.rate)
        return self._account

    def _fail(self, now: float) -> None:
        plan = self._plan
        self._account.failures += 1
        self._repairs.fail(now)
        group = min(int(self._chance() * plan.groups), plan.groups - 1)
        at_once = plan.noticed is Noticed.AT_ONCE
        self._stalled_until = (now if at_once else max(now, self._stalled_until)) + plan.detect_s
        # The group restarts once its failure is noticed, beside the others.
        begins = self._stalled_until if at_once else max(self._stalled_until, self._back_at[group])
        self._back_at[group] = begins + plan.restart_s

    def _spend(self, now: float, until: float) -> None:
        plan, account, seconds = self._plan, self._account, until - now
        if now < self._stalled_until:
            account.lose(Loss.RECOVERY, seconds)
            return
        absent = sum(1 for back_at in self._back_at if back_at > now)
        waiting = min(self._repairs.missing(now), plan.groups - absent)
        account.lose(Loss.ABSENT, seconds * absent / plan.groups)
        account.lose(Loss.WAITING, seconds * waiting / plan.groups)
        left_s = seconds * (plan.groups - absent - waiting) / plan.groups
        pause = plan.checkpoint_s / (plan.interval_s + plan.checkpoint_s) if plan.interval_s > 0 else 0.0
        account.lose(Loss.CHECKPOINTS, left_s * pause)
        account.useful_s += left_s * (1 - pause)
