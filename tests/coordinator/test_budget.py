"""What a broken round costs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.coordinator.budget import Spent, charge
from holdfast.coordinator.messages import Cause, RoundId, RunSettings
from holdfast.coordinator.state import Round

REAL, VICTIM = Cause("exit code 1"), Cause("connection reset", victim=True)


def broken(*causes: Cause, losses: int = 0, lasted: float = 1.0) -> Round:
    made = Round(RoundId(1, "n"), {}, 2, 100.0, {}, broken="x", broken_at=100.0 + lasted)
    for number, cause in enumerate(causes):
        made.note_failure(f"node{number}", cause)
    made.losses += ["host was lost"] * losses
    return made


def settings(**changes: Any) -> RunSettings:
    return RunSettings(1, 2, **{"max_restarts": 2, "progress_s": 60.0, **changes})


def test_failures_of_one_round_cost_one_restart() -> None:
    assert charge(broken(REAL, REAL, VICTIM), Spent(), settings()).spent.restarts == 1


@pytest.mark.parametrize("causes", [[], [VICTIM]])
def test_a_lost_node_and_its_victims_cost_nothing(causes: list[Cause]) -> None:
    assert charge(broken(*causes, losses=1), Spent(), settings()).spent == Spent()


def test_a_lost_node_does_not_excuse_a_real_failure() -> None:
    assert charge(broken(VICTIM, REAL, losses=1), Spent(), settings()).spent.restarts == 1


def test_victims_without_anybody_to_blame_are_charged() -> None:
    ruling = charge(broken(VICTIM), Spent(), settings())

    assert (ruling.spent.restarts, ruling.root) == (1, VICTIM)


def test_the_first_true_failure_is_the_root_in_any_order_of_reports() -> None:
    ruling = charge(broken(VICTIM, REAL), Spent(restarts=2), settings())

    assert ruling.root == REAL
    assert ruling.end == "exit code 1; not restarting: all 2 restarts are used"


def test_a_failure_that_no_restart_can_mend_ends_the_run_and_costs_nothing() -> None:
    lost = Cause("the state is lost", ends_job=True)

    ruling = charge(broken(REAL, lost), Spent(restarts=1), settings())

    assert ruling.spent == Spent(restarts=1)
    assert ruling.root == lost
    assert ruling.end == "the state is lost; not restarting: a restart cannot mend this"


def test_a_victims_cause_gives_way_to_the_true_one_of_the_same_node() -> None:
    round_ = broken(VICTIM)
    round_.note_failure("node0", REAL)
    round_.note_failure("node0", VICTIM)

    assert round_.failures == {"node0": REAL}


def test_progress_gives_restarts_back_where_that_was_asked_for() -> None:
    long = broken(REAL, lasted=61.0)

    assert charge(long, Spent(restarts=2), settings(reset_restarts=True)).spent.restarts == 1
    assert charge(long, Spent(restarts=2), settings()).end is not None


def test_failures_in_a_row_without_progress_are_a_crash_loop() -> None:
    rules = settings(max_restarts=100, crash_loop=3)
    spent = Spent()
    for _ in range(2):
        ruling = charge(broken(REAL), spent, rules)
        assert ruling.end is None
        spent = ruling.spent

    ruling = charge(broken(REAL), spent, rules)

    assert ruling.crash_loop
    assert ruling.end == "exit code 1; a crash loop: 3 failures in a row without progress"


def test_progress_breaks_a_crash_loop() -> None:
    rules = settings(max_restarts=100, crash_loop=2)
    spent = charge(broken(REAL), Spent(), rules).spent

    ruling = charge(broken(REAL, lasted=100.0), spent, rules)

    assert ruling.end is None
    assert ruling.spent.failures_without_progress == 0
