"""When a job counts as recovered, and what the report of a session says."""

from __future__ import annotations

from typing import Any

from holdfast.chaos.plan import PlannedFault, Strike
from holdfast.chaos.verdict import (
    NOT_RECOVERED,
    RECOVERED,
    SETTLE_S,
    SKIPPED,
    FaultResult,
    Look,
    RankSeen,
    Recovery,
    Report,
)

KILL = PlannedFault(1, Strike.KILL_WORKER, 30.0, 0.5)
KILL_AGENT = PlannedFault(2, Strike.KILL_AGENT, 60.0, 0.5)
FREEZE = PlannedFault(3, Strike.FREEZE, 90.0, 0.5, 10.0)


def rank(pid: int, steps: int, at: float | None, first: int = 0, running: bool = True) -> RankSeen:
    return RankSeen(pid, running, steps, at, first, first + steps - 1)


def look(at: float, *ranks: RankSeen, **more: Any) -> Look:
    return Look(at=at, outcome=more.pop("outcome", "running"), ranks=dict(enumerate(ranks)), **more)


BEFORE = look(9.9, rank(1, 100, 9.8), rank(2, 100, 9.8), round=1)


def killed(**more: Any) -> Recovery:
    return Recovery(KILL, "rank 1", 10.0, BEFORE, frozenset({2}), **more)


def test_a_job_has_recovered_when_every_rank_steps_in_a_process_that_was_not_killed() -> None:
    recovery = killed()
    recovery.take(look(10.1, rank(1, 101, 10.05), rank(2, 100, 9.8, running=False)))
    recovery.take(look(10.4, rank(3, 1, 10.3), rank(4, 0, None)))
    assert not recovery.is_over
    recovery.take(look(10.5, rank(3, 2, 10.35), rank(4, 1, 10.45)))

    assert recovery.is_over
    result = recovery.result()
    assert (result.outcome, round(result.recovered_s or 0, 3), result.steps_lost) == (RECOVERED, 0.45, 100)


def test_one_step_of_a_worker_that_lives_on_may_have_been_under_way() -> None:
    recovery = killed()
    recovery.take(look(10.2, rank(1, 101, 10.01), rank(4, 1, 10.1, first=100)))
    assert not recovery.is_over
    recovery.take(look(10.3, rank(1, 102, 10.2), rank(4, 2, 10.2, first=100)))

    assert recovery.is_over
    assert recovery.result().steps_lost == 0


def test_after_a_node_was_taken_only_a_later_round_counts() -> None:
    recovery = Recovery(KILL_AGENT, "", 10.0, BEFORE, frozenset({2, 20}))
    recovery.take(look(10.2, rank(1, 110, 10.2), round=1))
    assert not recovery.is_over
    recovery.take(look(10.9, rank(1, 140, 10.8), round=2))

    assert recovery.is_over
    assert (recovery.result().ranks_before, recovery.result().ranks_after) == (2, 1)


def test_an_agent_that_has_no_workers_yet_is_waited_for() -> None:
    recovery = killed()
    recovery.take(look(10.5, rank(3, 2, 10.4), agents_waiting=1))

    assert not recovery.is_over


def test_a_freeze_is_over_when_all_step_after_its_end() -> None:
    recovery = Recovery(FREEZE, "", 10.0, BEFORE)
    recovery.take(look(15.0, rank(1, 101, 10.01), rank(2, 100, 9.8, running=False)))
    recovery.undone(look(20.0, rank(1, 101, 10.01), rank(2, 100, 9.8, running=False)))
    recovery.take(look(20.1, rank(1, 102, 20.05), rank(2, 101, 20.05)))
    assert not recovery.is_over
    recovery.take(look(20.3, rank(1, 103, 20.2), rank(2, 102, 20.2)))

    result = recovery.result()
    assert recovery.is_over
    assert (round(result.recovered_s or 0, 3), round(result.settled_s or 0, 3)) == (10.2, 0.2)


def test_a_job_that_stays_smaller_after_a_freeze_is_waited_for_a_while() -> None:
    recovery = Recovery(FREEZE, "", 10.0, BEFORE)
    recovery.take(look(15.0, rank(1, 150, 15.0), round=2))
    recovery.undone(look(20.0, rank(1, 200, 20.0), round=2))
    recovery.take(look(21.0, rank(1, 210, 21.0), round=2))
    assert not recovery.is_over
    recovery.take(look(20.0 + SETTLE_S, rank(1, 300, 29.9), round=2))

    assert recovery.is_over
    assert recovery.result().recovered_s == 5.0


def test_without_heartbeats_live_processes_are_judged_and_the_report_says_so() -> None:
    before = look(9.9, RankSeen(1, True), RankSeen(2, True))
    recovery = Recovery(KILL, "", 10.0, before, frozenset({2}))
    recovery.take(look(10.1, RankSeen(1, True), RankSeen(2, False)))
    assert not recovery.is_over
    recovery.take(look(10.6, RankSeen(3, True), RankSeen(4, True)))

    assert recovery.is_over
    assert "steps are not judged" in str(recovery.result())
    frozen = Recovery(FREEZE, "", 10.0, before)
    frozen.take(look(10.1, RankSeen(1, True), RankSeen(2, True)))  # stopped a moment later
    assert frozen.recovered_at is None


def test_a_job_that_fails_has_not_recovered_and_one_that_succeeds_is_no_failure() -> None:
    failed, done = killed(), killed()
    failed.take(look(11.0, outcome="failed"))
    done.take(look(11.0, outcome="succeeded"))

    assert failed.is_over
    assert done.is_over
    assert failed.result().outcome == NOT_RECOVERED
    assert done.result().outcome == "the job ended first"


def report(*results: FaultResult, **more: Any) -> Report:
    return Report(run="r", seed=7, results=results, job=more.pop("job", "running"), steps=500, steps_redone=3, **more)


GOOD = FaultResult(KILL, "rank 1", RECOVERED, recovered_s=0.5, ranks_before=2, ranks_after=2, steps_lost=2)
SLOW = FaultResult(FREEZE, "rank 0", RECOVERED, recovered_s=10.25, settled_s=0.25, ranks_before=2, ranks_after=2)
LOST = FaultResult(KILL_AGENT, "the agent 5", NOT_RECOVERED, "not every rank made steps within 60 s")
PASSED_OVER = FaultResult(KILL_AGENT, "", SKIPPED, "the job has one node only: no other could go on")


def test_a_report_counts_and_names_the_slowest() -> None:
    said = report(GOOD, SLOW, PASSED_OVER)

    assert said.is_good
    assert said.lines() == [
        "2 faults on run r with seed 7: 2 recovered, median 5.4 s, slowest 10.2 s (freeze); 1 skipped",
        "steps: 500 reached, 2 lost to faults, 3 made twice so far",
        "processes left behind by killed agents: 0",
        "the job: goes on",
    ]
    data = said.to_json()
    assert (data["struck"], data["recovered"], data["worst_s"], data["faults"][0]["recovered_s"]) == (2, 2, 10.25, 0.5)


def test_what_was_not_recovered_or_is_left_behind_is_not_good() -> None:
    assert not report(GOOD, LOST).is_good
    assert "not recovered: fault 2, kill-agent of the agent 5" in report(GOOD, LOST).lines()
    assert not report(GOOD, orphans=(77,)).is_good
    assert "processes left behind by killed agents: 1: pid 77" in report(GOOD, orphans=(77,)).lines()
    assert not report(GOOD, job="gone").is_good
    assert report(GOOD, job="succeeded").is_good
