"""The platform's metrics: which fact gives which values of the group `torchelastic`. Pure.

Names under `workers.<role>.` and their values are TorchElastic's; the rest is ours. A row marked as a count gives how
often something has happened in the life of this agent, so that its last value is the total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.facts import Fact

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: the fact it comes from, its name (`{key}` is filled from the fact), its value, what it means.

    None as value means that this fact has none.
    """

    fact: str
    name: str
    value: Callable[[Data], float | None]
    meaning: str
    counts: bool = False


def metrics_of(fact: Fact, role: str = "default") -> list[tuple[str, float]]:
    """Return the metrics that a fact gives, in the order of the table; counts are those of this fact alone."""
    return [(name, value) for name, value, _ in rows_of(fact, role)]


def rows_of(fact: Fact, role: str = "default") -> list[tuple[str, float, Row]]:
    """Return the metrics that a fact gives, each with its row; `role` is for facts without one."""
    data = {"role": role, **fact.data}
    found = []
    for row in _BY_FACT.get(fact.kind, ()):
        value = row.value(data)
        if value is not None:
            found.append((row.name.format_map(_Named(data)), value, row))
    return found


class _Named(dict[str, Any]):
    """A fact's data for filling names; missing and empty values are `unknown`."""

    def __getitem__(self, key: str) -> str:
        return str(self.get(key) or "unknown")


# -- values --------------------------------------------------------------------------------------------------


def _number(key: str) -> Callable[[Data], float | None]:
    def value(data: Data) -> float | None:
        found = data.get(key)
        return found if isinstance(found, (int, float)) else None

    return value


def _where(condition: str, key: str) -> Callable[[Data], float | None]:
    """Take a number only from facts where `condition` is true."""
    number = _number(key)
    return lambda data: number(data) if data.get(condition) else None


def _one(_: Data) -> float:
    return 1


def _ranks(data: Data) -> float:
    return len(data.get("ranks") or ())


def _ended(*, failed: bool, retried: bool) -> Callable[[Data], float | None]:
    """Return 1 if the run ended in this way, 0 if in another; None for a run that was cut short."""

    def value(data: Data) -> float | None:
        if not _is_over(data):
            return None
        was_retried = (data.get("restarts_used") or 0) > 0
        return int((data["outcome"] == "failed") == failed and was_retried == retried)

    return value


def _is_over(data: Data) -> bool:
    return data.get("outcome") in ("succeeded", "failed")


def _total(data: Data) -> float | None:
    return 1 if _is_over(data) else None


def _remaining(data: Data) -> float | None:
    used, most = data.get("restarts_used"), data.get("max_restarts")
    if not isinstance(used, int) or not isinstance(most, int):
        return None
    return max(0, most - used)


def flakiness(data: Data) -> float | None:
    """Return 100 for a failed run, else the percentage of its starts, the first included, that it used up."""
    if data.get("outcome") == "failed":
        return 100
    remaining = _remaining(data)
    if data.get("outcome") != "succeeded" or remaining is None:
        return None
    return int(100 - 100 * (remaining + 1) / (data["max_restarts"] + 1))


# -- the table -----------------------------------------------------------------------------------------------

TABLE: tuple[Row, ...] = (
    Row(
        "rendezvous", "rendezvous.duration_ms", _number("duration_ms"), "from asking for a round to being placed in it"
    ),
    Row(
        "rendezvous",
        "regroup.duration_ms",
        _where("regroup", "duration_ms"),
        "the same, where a round was broken before",
    ),
    Row("rendezvous", "rendezvous.round", _number("round"), "the number of the round"),
    Row("workers_started", "workers.start_ms", _number("duration_ms"), "starting this node's workers"),
    Row("workers_started", "membership.nodes", _number("group_world_size"), "nodes in the round"),
    Row("workers_started", "membership.workers", _number("world_size"), "workers in the round"),
    Row("workers_started", "restarts", _number("restarts_used"), "restarts charged so far"),
    Row("workers_started", "workers.{role}.remaining_restarts", _number("restarts_left"), "restarts left"),
    Row("workers_started", "workers.{role}.healthy", _one, "starts of this node's workers", counts=True),
    Row("workers_stopped", "workers.stop_ms", _number("duration_ms"), "stopping this node's workers"),
    Row("worker_failed", "failures.{kind}", _one, "workers that failed, by kind of failure", counts=True),
    Row("round_lost", "rounds.lost", _one, "rounds that were broken", counts=True),
    Row("workers_started", "lost_work_ms", _number("downtime_ms"), "time without training, from the loss to the start"),
    Row("straggler", "straggler.ranks", _ranks, "workers found to be slower than the others"),
    Row("regrouped", "regroup.in_process_ms", _number("duration_ms"), "regrouping without leaving the process"),
    Row(
        "workers_replaced",
        "workers.replaced",
        _one,
        "times that workers were replaced while others went on",
        counts=True,
    ),
    Row("timer_expired", "timers.expired", _one, "timers that expired", counts=True),
    Row("hang", "hangs", _one, "times that workers were found stuck", counts=True),
    Row("hang", "hang.ranks", _ranks, "workers found stuck the last time"),
    Row("checkpoint_written", "checkpoint.write_latency_ms", _number("duration_ms"), "writing a checkpoint, any tier"),
    Row("checkpoint_written", "checkpoint.{tier}.write_latency_ms", _where("tier", "duration_ms"), "the same, by tier"),
    Row("checkpoint_written", "checkpoint.bytes", _number("bytes"), "size of the last checkpoint"),
    Row("checkpoint_read", "checkpoint.read_latency_ms", _number("duration_ms"), "reading a checkpoint, any tier"),
    Row("checkpoint_read", "checkpoint.{tier}.read_latency_ms", _where("tier", "duration_ms"), "the same, by tier"),
    Row("state_synced", "state.sync_ms", _number("duration_ms"), "taking the state of a peer"),
    Row("state_synced", "state.sync_bytes", _number("bytes"), "size of the state taken last"),
    Row("run_ended", "run.duration_ms", _number("duration_ms"), "the whole run, as this agent saw it"),
    Row(
        "run_ended", "workers.{role}.{outcome}", _one, "1 for the way the run ended: succeeded, failed, signalled, left"
    ),
    Row("run_ended", "workers.{role}.run_total", _total, "1 for a run that succeeded or failed"),
    Row("run_ended", "workers.{role}.run_success_no_retries", _ended(failed=False, retried=False), "1 or 0"),
    Row("run_ended", "workers.{role}.run_success_with_retries", _ended(failed=False, retried=True), "1 or 0"),
    Row("run_ended", "workers.{role}.run_failed_no_retries", _ended(failed=True, retried=False), "1 or 0"),
    Row("run_ended", "workers.{role}.run_failed_with_retries", _ended(failed=True, retried=True), "1 or 0"),
    Row("run_ended", "workers.{role}.remaining_restarts", _remaining, "restarts left"),
    Row("run_ended", "workers.{role}.flakiness", flakiness, "100 for a failed run, else percent of its chances used"),
    Row("outbox_dropped", "telemetry.dropped", _number("dropped"), "values and events that a sink was too slow for"),
)

_BY_FACT: dict[str, tuple[Row, ...]] = {
    kind: tuple(row for row in TABLE if row.fact == kind) for kind in dict.fromkeys(row.fact for row in TABLE)
}
