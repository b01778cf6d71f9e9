"""An account of a run's time in words. Pure."""

from __future__ import annotations

import re

from holdfast.events.account import Account, Phase
from holdfast.quantities import length

#: How many causes a line names, and how long each may be.
CAUSES_MAX, CAUSE_CHARS_MAX = 3, 80
#: Losses below this are not worth a word.
LOSS_S_MIN = 0.05

_ASIDE = re.compile(r"\s*\([^()]*\)")


def goodput_line(account: Account) -> str:
    """Return goodput and what was lost to what: `91.2 %; lost 2.1 s to the first start`; empty if nothing ran."""
    if account.goodput is None:
        return ""
    share = percent(account) if account.measured else "unknown: no worker called holdfast.heartbeat(step)"
    losses = losses_by_cause(account)
    named = [f"{length(seconds)} to {short_cause(cause)}" for cause, seconds in losses[:CAUSES_MAX]]
    if rest := sum(seconds for _, seconds in losses[CAUSES_MAX:]):
        named.append(f"{length(rest)} to {len(losses) - CAUSES_MAX} more")
    return f"{share}; lost {', '.join(named)}" if named else share


def percent(account: Account) -> str:
    """Return goodput as people write it, `91.2 %`; empty if it is not known."""
    return "" if account.goodput is None or not account.measured else f"{account.goodput * 100:.1f} %"


def losses_by_cause(account: Account) -> list[tuple[str, float]]:
    """Return what time was lost to, the greatest loss first, without what hardly counts."""
    found: dict[str, float] = {}
    for loss in account.losses:
        found[loss.cause] = found.get(loss.cause, 0.0) + loss.seconds
    return sorted(((cause, s) for cause, s in found.items() if s >= LOSS_S_MIN), key=lambda pair: -pair[1])


def short_cause(cause: str) -> str:
    """Shorten a cause to its first line, without what stands in brackets."""
    text = without_asides(cause.split("\n")[0]).strip()
    return text if len(text) <= CAUSE_CHARS_MAX else text[: CAUSE_CHARS_MAX - 1] + "…"


def without_asides(text: str) -> str:
    """Leave out what stands in brackets."""
    return _ASIDE.sub("", text)


def split_line(account: Account) -> str:
    """Return the phases with their times: `stepping 2.0 s, starting 0.5 s`."""
    told = (phase for phase in Phase if account.seconds[phase] >= 0.05)
    return ", ".join(f"{phase_name(account, phase)} {length(account.seconds[phase])}" for phase in told)


def phase_name(account: Account, phase: Phase) -> str:
    """Return what a phase is called: without heartbeats it is not known whether workers that run make steps."""
    return "running" if phase is Phase.STEPPING and not account.measured else phase.value


def slowest_text(account: Account) -> str:
    """Return the slowest rank, `slowest rank 3 (2.1 steps/s)`; empty where all are about as fast."""
    return "" if account.slowest is None else f"slowest rank {account.slowest[0]} ({account.slowest[1]:.3g} steps/s)"
