"""Goodput in closed form, the best checkpoint interval, and the best number of spares. Pure.

Failures come at random, at a rate that does not change. Let r be their rate, d the training between two checkpoints,
w the pause for one and u the time of a recovery.

A segment of d + w succeeds without a failure or is begun again, so it takes (exp(r(d + w)) - 1) / r of training. A
recovery that a failure interrupts and begins again takes (exp(ru) - 1) / r, so the share of time outside recoveries is
exp(-ru); where such a failure is noticed at the end and costs another recovery, it is 1 - ru. For small ru and rd both
come to what Meta published for RSC-1: (1 - r(u + d/2)) / (1 + w/d).

Nodes that are being repaired are counted by a Poisson distribution with the mean r x share x repair time. If more are
out than there are spares, the job waits.

With replica groups, each failure stops all for the time that it takes to be noticed, and its own group for a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from holdfast.forecast.plan import Loss, Noticed, Plan, Shares

_HALVINGS = 200
#: Beyond this, an exponential is more than any float: nothing is ever finished.
_EXPONENT_MAX = 600.0
SPARES_MAX = 10_000
#: A tail that is smaller than this is nothing.
_TAIL = 1e-12


def shares(plan: Plan) -> Shares:
    """Return what becomes of the job's time."""
    return _groups(plan) if plan.groups > 1 else _whole(plan)


def published(plan: Plan) -> float:
    """Return the goodput by the formula that Meta published for RSC-1; it is meant for small losses."""
    share = 1 - plan.rate * (plan.recovery_s + plan.interval_s / 2)
    return max(0.0, share) / (1 + plan.checkpoint_s / plan.interval_s)


def best_interval(plan: Plan) -> float:
    """Return how much training should lie between two checkpoints; 0 if checkpoints cost nothing, so all the time."""
    rate, pause_s = plan.rate, plan.checkpoint_s
    if pause_s <= 0:
        return 0.0
    # The derivative of d / (exp(r(d + w)) - 1) is 0 where exp(-r(d + w)) = 1 - rd; the left side falls more slowly.
    low, high = 0.0, 1 / rate
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if 1 - rate * middle > math.exp(-rate * (middle + pause_s)):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def best_spares(plan: Plan) -> int:
    """Return the number of spares that gives the most training for each node that is paid for."""
    best, best_value = 0, -1.0
    for spares in range(_likely_out(plan) + 1):
        value = value_of(replace(plan, spares=spares))
        if value > best_value:
            best, best_value = spares, value
    return best


def value_of(plan: Plan) -> float:
    """Return the goodput of all nodes, spares included."""
    return shares(plan).goodput * plan.nodes / (plan.nodes + plan.spares)


def outside_recoveries(rate: float, recovery_s: float, noticed: Noticed) -> float:
    """Return the share of time that is not spent in recoveries."""
    load = rate * recovery_s
    return math.exp(-load) if noticed is Noticed.AT_ONCE else max(0.0, 1 - load)


def _whole(plan: Plan) -> Shares:
    """All nodes restart together, from the last checkpoint."""
    waiting = sum(share for out, share in _out_shares(plan) if out > plan.spares)
    present = 1 - waiting
    training = present * outside_recoveries(plan.rate, plan.recovery_s, plan.noticed)
    useful, pauses = _of_training(plan)
    return Shares(
        training * useful,
        {
            Loss.CHECKPOINTS: training * pauses,
            Loss.REDONE: training * (1 - useful - pauses),
            Loss.RECOVERY: present - training,
            Loss.WAITING: waiting,
        },
    )


def _of_training(plan: Plan) -> tuple[float, float]:
    """Return which shares of the time outside recoveries are kept, and are pauses for checkpoints that are kept."""
    rate, interval_s, pause_s = plan.rate, plan.interval_s, plan.checkpoint_s
    if interval_s <= 0:  # at all times for free, or never
        return (1.0, 0.0) if pause_s <= 0 else (0.0, 0.0)
    exponent = rate * (interval_s + pause_s)
    if exponent > _EXPONENT_MAX:
        return 0.0, 0.0
    takes_s = math.expm1(exponent) / rate
    return interval_s / takes_s, pause_s / takes_s


def _groups(plan: Plan) -> Shares:
    """Only the group that failed restarts; the others go on as soon as the failure is noticed."""
    stepping = outside_recoveries(plan.rate, plan.detect_s, plan.noticed)
    here = outside_recoveries(plan.rate / plan.groups, plan.restart_s, plan.noticed)
    missing = sum(min(out - plan.spares, plan.groups) * share for out, share in _out_shares(plan) if out > plan.spares)
    waiting = stepping * missing / plan.groups
    absent = (stepping - waiting) * (1 - here)
    left = stepping - waiting - absent
    pauses = left * plan.checkpoint_s / (plan.interval_s + plan.checkpoint_s) if plan.interval_s > 0 else 0.0
    return Shares(
        left - pauses,
        {Loss.CHECKPOINTS: pauses, Loss.RECOVERY: 1 - stepping, Loss.ABSENT: absent, Loss.WAITING: waiting},
    )


def _out_shares(plan: Plan) -> Iterator[tuple[int, float]]:
    """Yield each number of nodes that may be in repair, with the share of time for which it is so."""
    mean, total = plan.out, 0.0
    for out in range(_likely_out(plan) + 1):
        share = math.exp(out * math.log(mean) - mean - math.lgamma(out + 1)) if mean > 0 else float(out == 0)
        total += share
        yield out, share
        if out > mean and 1 - total < _TAIL:
            return


def _likely_out(plan: Plan) -> int:
    """Return a number of nodes in repair that is hardly ever exceeded."""
    return min(SPARES_MAX, int(plan.out + 12 * math.sqrt(plan.out) + 20))
