"""What the page is told of a run, as plain data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.events.account import Account, Phase
from holdfast.events.summary import short_cause
from holdfast.view.state import RunState
from holdfast.view.top import Row, Seen

#: How many spans a timeline has at most; where there are more, the shortest are left out.
SPANS_MAX = 4000


def summary(seen: Seen) -> dict[str, Any]:
    """Describe a run in a list."""
    state = seen.state
    losses = state.account.losses
    return {
        "run": state.run,
        "outcome": state.outcome,
        "begin": state.begin,
        "end": state.end,
        "goodput": state.account.goodput if state.account.measured else None,
        "lost_s": state.account.lost_s,
        "most_lost_to": short_cause(losses[0].cause) if losses else "",
        "workers": state.world_size,
        "nodes": state.nodes,
        "round": state.round,
        "restarts": state.restarts_used,
        "steps": state.account.steps if state.account.measured else None,
    }


def detail(seen: Seen, samples: Sequence[dict[str, Any]], folder: str) -> dict[str, Any]:
    """Describe one run in full."""
    state = seen.state
    return {
        **summary(seen),
        "reason": state.reason,
        "waiting": state.waiting,
        "restarts_left": state.restarts_left,
        "steps_redone": state.account.steps_redone,
        "slowest": state.account.slowest,
        "seconds": {phase.value: state.account.seconds[phase] for phase in Phase},
        "losses": [
            {"cause": loss.cause, "short": short_cause(loss.cause), "phase": loss.phase.value, "seconds": loss.seconds}
            for loss in state.account.losses
        ],
        "spans": spans(state.account),
        "ranks": [rank(row) for row in seen.rows],
        "events": [event(state, number) for number in range(len(state.notable))],
        "failure": None if state.failure is None else dict(state.failure),
        "samples": list(samples),
        "logs": folder,
    }


def spans(account: Account) -> list[list[Any]]:
    """Return the timeline: rank, phase, round, begin and end since the start, cause; short for the wire."""
    found = sorted(account.spans, key=lambda span: -span.seconds)[:SPANS_MAX]
    found.sort(key=lambda span: (span.rank, span.begin))
    begin = account.begin
    return [
        [
            span.rank,
            span.phase.value,
            span.round,
            round(span.begin - begin, 3),
            round(span.end - begin, 3),
            short_cause(span.cause),
        ]
        for span in found
    ]


def rank(row: Row) -> dict[str, Any]:
    """Describe a live rank."""
    return {
        "rank": row.rank,
        "host": row.host,
        "pid": row.pid,
        "step": row.step,
        "rate": row.rate,
        "silent_s": row.silent_s,
        "cpu_percent": row.cpu_percent,
        "rss_bytes": row.rss_bytes,
        "gpu_percent": row.gpu_percent,
        "gpu_bytes": row.gpu_bytes,
    }


def event(state: RunState, number: int) -> dict[str, Any]:
    """Describe a notable event."""
    told = state.notable[number]
    return {
        "time": told.entry.time,
        "after_s": told.entry.time - state.begin,
        "level": told.entry.level,
        "kind": told.entry.kind,
        "round": told.round,
        "sentence": told.entry.sentence,
    }
