"""`holdfast list`, `status`, `describe`, `cancel`, `wait`, `delete`: jobs from any shell."""

from __future__ import annotations

import pytest

from tests.cli.conftest import FOREVER, Invoke


@pytest.fixture
def running(invoke: Invoke) -> str:
    return invoke("run", "--detach", "utils.sh", "sleep", FOREVER).out.strip()


@pytest.fixture
def done(invoke: Invoke) -> str:
    return invoke("run", "utils.echo", "--msg", "hi").out.strip()


@pytest.fixture
def failed(invoke: Invoke) -> str:
    return invoke("run", "utils.sh", "sh", "-c", "exit 5").out.strip()


def test_jobs_are_listed_with_their_states(invoke: Invoke, done: str, failed: str) -> None:
    rows = invoke("list").out.splitlines()
    data = invoke("list", "--json", "-s", "local").data

    assert rows[0].split() == ["APP", "HANDLE", "APP", "STATUS", "APP", "NAME", "SUBMITTED"]
    assert [row.split()[:3] for row in rows[1:]] == [[done, "SUCCEEDED", "echo"], [failed, "FAILED", "sh"]]
    assert [(job["handle"], job["state"]) for job in data] == [(done, "SUCCEEDED"), (failed, "FAILED")]


def test_where_there_is_no_job_a_sentence_says_what_makes_one(invoke: Invoke) -> None:
    assert "there is no job yet; `holdfast run` submits one" in invoke("list").err
    assert invoke("list", "--json").err == ""


def test_jobs_are_listed_by_state(invoke: Invoke, done: str, failed: str) -> None:
    assert [job["handle"] for job in invoke("list", "--json", "--state", "failed,cancelled").data] == [failed]


def test_a_state_that_there_is_not_is_refused(invoke: Invoke) -> None:
    said = invoke("list", "--state", "running,sleeping")

    assert said.code == 2
    assert "there is no state 'sleeping'; there are unsubmitted, submitted," in said.err


def test_a_status_tells_of_every_replica(invoke: Invoke, failed: str) -> None:
    said = invoke("status", failed)
    data = invoke("status", "--json", failed).data

    assert "State: FAILED" in said.out
    assert "sh/0 FAILED" in said.out
    assert data["handle"] == failed
    assert data["roles"][0]["replicas"][0]["exit_code"] == 5


def test_several_jobs_are_asked_for_at_once(invoke: Invoke, done: str, failed: str) -> None:
    assert [each["state"] for each in invoke("status", "--json", done, failed).data] == ["SUCCEEDED", "FAILED"]


def test_handles_may_be_abbreviated(invoke: Invoke, done: str) -> None:
    assert invoke("status", "--json", done.rpartition("/")[2]).data["handle"] == done
    assert invoke("status", "--json", "ec").data["handle"] == done


@pytest.mark.parametrize("command", ["status", "describe", "log", "cancel", "delete", "wait"])
def test_a_job_that_is_not_there_is_told_in_a_sentence(invoke: Invoke, command: str) -> None:
    for handle in ("nothing", "local://holdfast/nothing-1"):
        said = invoke(command, handle)

        assert said.code == 2
        assert "no job" in said.err
        assert "Traceback" not in said.err


def test_a_job_is_described_as_it_was_submitted(invoke: Invoke, done: str) -> None:
    said = invoke("describe", done)
    data = invoke("describe", "--json", done).data

    assert "entrypoint: echo" in said.out
    assert (data["handle"], data["name"], data["roles"][0]["args"]) == (done, "echo", ["hi"])


def test_a_running_job_is_cancelled_once(invoke: Invoke, running: str) -> None:
    assert f"{running} is being cancelled" in invoke("cancel", running).out
    assert invoke("wait", running).code == 1
    assert "has ended already: CANCELLED" in invoke("cancel", running).out


def test_waiting_exits_with_the_jobs_exit_code(invoke: Invoke, done: str, failed: str) -> None:
    assert invoke("wait", done).code == 0
    said = invoke("wait", failed)
    assert said.code == 5
    assert "failed in sh/0 (exit code 5)" in said.err


def test_waiting_gives_up_as_timeout_does(invoke: Invoke, running: str) -> None:
    said = invoke("wait", "--timeout", "0.05", running)
    assert said.code == 124
    assert "after 0.05 s" in said.err
    invoke("cancel", running)
    invoke("wait", running)


def test_deleted_jobs_are_gone(invoke: Invoke, done: str, failed: str) -> None:
    assert invoke("delete", done, failed).out == f"{done} deleted\n{failed} deleted\n"
    assert invoke("list", "--json").data == []


def test_all_finished_jobs_are_deleted_and_running_ones_stay(
    invoke: Invoke, done: str, failed: str, running: str
) -> None:
    said = invoke("delete", "--all-finished")

    assert sorted(said.out.split()[::2]) == sorted([done, failed])
    assert [job["handle"] for job in invoke("list", "--json").data] == [running]
    assert invoke("delete", running).code == 0


def test_deleting_nothing_in_particular_is_refused(invoke: Invoke) -> None:
    assert "--all-finished" in invoke("delete").err


def test_help_works_in_a_process_that_has_listed_before(invoke: Invoke) -> None:
    """The command's module is an attribute of its package, where it has the name of a builtin."""
    assert invoke("list").code == 0
    assert "Submit jobs" in invoke("--help").out
