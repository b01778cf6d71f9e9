"""Which fact gives which platform metrics."""

from __future__ import annotations

import pytest

from holdfast.facts import Fact
from holdfast.metrics.table import TABLE, metrics_of


def given(kind: str, /, **data: object) -> dict[str, float]:
    return dict(metrics_of(Fact(kind, "it happened", data)))


def test_a_rendezvous_gives_its_time_and_round_and_a_regroup_the_regroup_time_too() -> None:
    first = given("rendezvous", role="trainer", round=1, duration_ms=120.5, regroup=False)
    again = given("rendezvous", role="trainer", round=2, duration_ms=8.0, regroup=True)

    assert first == {"rendezvous.duration_ms": 120.5, "rendezvous.round": 1}
    assert again == {"rendezvous.duration_ms": 8.0, "regroup.duration_ms": 8.0, "rendezvous.round": 2}


def test_started_workers_give_membership_and_restarts() -> None:
    assert given(
        "workers_started",
        role="trainer",
        round=3,
        group_rank=0,
        group_world_size=4,
        world_size=32,
        duration_ms=40,
        restarts_used=1,
        restarts_left=2,
    ) == {
        "workers.start_ms": 40,
        "membership.nodes": 4,
        "membership.workers": 32,
        "restarts": 1,
        "workers.trainer.remaining_restarts": 2,
        "workers.trainer.healthy": 1,
    }


@pytest.mark.parametrize(
    ("outcome", "used", "flakiness", "name"),
    [
        ("succeeded", 0, 0, "run_success_no_retries"),
        ("succeeded", 1, 25, "run_success_with_retries"),
        ("succeeded", 3, 75, "run_success_with_retries"),
        ("failed", 0, 100, "run_failed_no_retries"),
        ("failed", 3, 100, "run_failed_with_retries"),
    ],
)
def test_a_run_that_ended_gives_torchelastics_metrics(outcome: str, used: int, flakiness: int, name: str) -> None:
    found = given("run_ended", role="r", outcome=outcome, restarts_used=used, max_restarts=3, duration_ms=9000)

    assert found["workers.r.run_total"] == 1
    assert found["workers.r.flakiness"] == flakiness
    assert found["workers.r.remaining_restarts"] == 3 - used
    assert found[f"workers.r.{outcome}"] == 1
    ways = ("success_no", "success_with", "failed_no", "failed_with")
    assert {way: found[f"workers.r.run_{way}_retries"] for way in ways} == {
        way: int(name == f"run_{way}_retries") for way in ways
    }


@pytest.mark.parametrize("outcome", ["signalled", "left"])
def test_a_run_that_was_cut_short_neither_succeeded_nor_failed(outcome: str) -> None:
    found = given("run_ended", role="r", outcome=outcome, restarts_used=0, max_restarts=3, duration_ms=5)

    assert found == {"run.duration_ms": 5, f"workers.r.{outcome}": 1, "workers.r.remaining_restarts": 3}


def test_failures_are_counted_by_kind_and_lost_work_is_told() -> None:
    assert given("worker_failed", role="r", kind="oom", rank=3, local_rank=3, exit_code=-9) == {"failures.oom": 1}
    assert given("round_lost", role="r", reason="a worker failed") == {"rounds.lost": 1}
    assert given("workers_started", role="r", downtime_ms=700)["lost_work_ms"] == 700
    assert "lost_work_ms" not in given("workers_started", role="r", downtime_ms=None)


def test_checkpoints_are_told_altogether_and_by_tier() -> None:
    assert given("checkpoint_written", duration_ms=12, bytes=4096, tier="memory") == {
        "checkpoint.write_latency_ms": 12,
        "checkpoint.memory.write_latency_ms": 12,
        "checkpoint.bytes": 4096,
    }
    assert given("checkpoint_read", duration_ms=3) == {"checkpoint.read_latency_ms": 3}


def test_hangs_syncs_stops_and_drops_are_told() -> None:
    assert given("hang", role="r", ranks=[1, 2]) == {"hangs": 1, "hang.ranks": 2}
    assert given("state_synced", duration_ms=5, bytes=10) == {"state.sync_ms": 5, "state.sync_bytes": 10}
    assert given("workers_stopped", role="r", duration_ms=30) == {"workers.stop_ms": 30}
    assert given("outbox_dropped", dropped=17) == {"telemetry.dropped": 17}


def test_a_fact_without_its_data_gives_what_it_can_and_an_unknown_one_nothing() -> None:
    assert given("workers_started") == {"workers.default.healthy": 1}
    assert given("worker_failed") == {"failures.unknown": 1}
    assert given("run_ended") == {"workers.default.unknown": 1}
    assert given("something_else", duration_ms=1) == {}


def test_every_row_says_what_it_means_and_no_two_rows_of_a_fact_share_a_name() -> None:
    assert all(row.meaning for row in TABLE)
    assert len({(row.fact, row.name) for row in TABLE}) == len(TABLE)
