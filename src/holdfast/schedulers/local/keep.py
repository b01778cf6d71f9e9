"""Which finished jobs are dropped so that their folder does not grow for ever. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import UsageError

#: How many finished jobs of a session are kept, for how many days, and how much they may hold in all.
KEEP_JOBS = 200
KEEP_DAYS = 30.0
KEEP_BYTES = 20 * 1024**3
#: A job that ended this recently stays, whatever the limits say: a user may still be looking at it.
FRESH_S = 600.0

JOBS_VARIABLE, DAYS_VARIABLE, BYTES_VARIABLE = "HOLDFAST_KEEP_JOBS", "HOLDFAST_KEEP_DAYS", "HOLDFAST_KEEP_BYTES"


class Policy(NamedTuple):
    """The limits; a running job never counts."""

    jobs: int = KEEP_JOBS
    days: float = KEEP_DAYS
    bytes: int = KEEP_BYTES
    fresh_s: float = FRESH_S


class Finished(NamedTuple):
    """A job that has ended: its folder's name, when, and how much it holds."""

    name: str
    ended_at: float
    bytes: int


def policy_from(environ: Mapping[str, str]) -> Policy:
    """Read the limits from the environment."""
    return Policy(
        jobs=int(_number(environ, JOBS_VARIABLE, KEEP_JOBS)),
        days=_number(environ, DAYS_VARIABLE, KEEP_DAYS),
        bytes=int(_number(environ, BYTES_VARIABLE, KEEP_BYTES)),
    )


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise UsageError(f"{name}={text!r} is not a number of 0 or more: correct it or unset it")
    return value


def choose(finished: Sequence[Finished], now: float, policy: Policy) -> list[str]:
    """Name the jobs to drop: the oldest first, and as few as the limits allow."""
    dropped = []
    held = 0
    for place, job in enumerate(sorted(finished, key=lambda job: job.ended_at, reverse=True)):
        held += job.bytes
        age = now - job.ended_at
        over = place >= policy.jobs or age > policy.days * 86400 or held > policy.bytes
        if over and age > policy.fresh_s:
            dropped.append(job.name)
    return dropped[::-1]
