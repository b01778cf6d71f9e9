"""From records to how a job is doing."""

from dataclasses import replace

import pytest

from holdfast.schedulers.local.parse import describe, judge
from holdfast.schedulers.local.record import RECORD_VERSION, JobRecord, Life, LocalRequest, RolePlan
from holdfast.specs import AppState

ALIVE = Life(alive=True, same_host=True, same_boot=True, booted_at="then", cancel_asked=False)
DEAD = replace(ALIVE, alive=False)
RUNNING = {
    "version": RECORD_VERSION,
    "state": "RUNNING",
    "msg": "",
    "host": "here",
    "supervisor": {"pid": 7},
    "replicas": [
        {"role": "a", "id": 0, "state": "SUCCEEDED", "exit_code": 0},
        {"role": "a", "id": 1, "state": "RUNNING"},
        {"role": "b", "id": 0, "state": "FAILED", "exit_code": 3, "cause": "it broke", "error": '{"x": 1}'},
    ],
}


def record(state):
    """A record as it is read from disk."""
    return JobRecord.from_json(state)


def test_while_its_supervisor_lives_a_job_is_what_its_record_says():
    assert judge(record(RUNNING), ALIVE).state is AppState.RUNNING
    assert judge(record({**RUNNING, "state": "SUBMITTED", "supervisor": None}), ALIVE).state is AppState.SUBMITTED


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "CANCELLED"])
@pytest.mark.parametrize(
    "life", [DEAD, replace(DEAD, same_boot=False), replace(DEAD, same_boot=False, same_host=False)]
)
def test_a_last_word_stands_whatever_happened_since(state, life):
    assert judge(record({**RUNNING, "state": state, "msg": "said"}), life).state.name == state
    assert judge(record({**RUNNING, "state": state, "msg": "said"}), life).msg == "said"


@pytest.mark.parametrize(
    ("life", "state", "state_of_job", "words"),
    [
        (DEAD, RUNNING, AppState.FAILED, "its supervisor (process 7) was killed while the job was RUNNING"),
        (DEAD, {**RUNNING, "supervisor": None}, AppState.FAILED, "its supervisor never began"),
        (replace(DEAD, same_boot=False), RUNNING, AppState.FAILED, "the machine was rebooted at then"),
        (replace(DEAD, cancel_asked=True), RUNNING, AppState.CANCELLED, "the job was cancelled; its supervisor"),
        (replace(DEAD, same_boot=False, same_host=False), RUNNING, AppState.UNKNOWN, "it was submitted on here"),
    ],
)
def test_without_a_last_word_the_reader_says_why(life, state, state_of_job, words):
    verdict = judge(record(state), life)

    assert verdict.state is state_of_job
    assert words in verdict.msg


def test_replicas_that_left_no_word_share_the_jobs_fate():
    request = LocalRequest("id", "name", "s", [], [RolePlan("a"), RolePlan("b")], metadata={"k": "v"})
    found = describe(request, record(RUNNING), DEAD)

    assert [[(each.state, each.exit_code) for each in role.replicas] for role in found.roles_statuses] == [
        [(AppState.SUCCEEDED, 0), (AppState.FAILED, None)],
        [(AppState.FAILED, 3)],
    ]
    assert found.roles_statuses[0].replicas[1].cause.startswith("its supervisor")
    assert found.roles_statuses[1].replicas[0].cause == "it broke"
    assert found.structured_error_msg == '{"x": 1}'
    assert (found.name, found.metadata) == ("name", {"k": "v"})


def test_trouble_with_the_logs_is_told_beside_what_happened():
    verdict = judge(record({**RUNNING, "state": "FAILED", "msg": "it broke", "notes": ["the disk is full"]}), DEAD)

    assert verdict.msg == "it broke; the disk is full"
