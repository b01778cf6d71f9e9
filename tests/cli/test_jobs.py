"""What the commands about jobs share: handles, and how a replica's end is told."""

from __future__ import annotations

import pytest

from holdfast.cli.follow_job import _why
from holdfast.cli.names import find_handle
from holdfast.errors import UsageError
from holdfast.runner import Runner
from holdfast.specs import AppDef, AppState, ReplicaStatus, Role
from holdfast.testing.memory_scheduler import MemoryCluster, MemoryScheduler


class CannotList(MemoryScheduler):
    def list(self, cfg: object = None) -> list:
        raise ConnectionError("the cluster is away")


@pytest.fixture
def runner(environ: dict[str, str]) -> Runner:
    clusters = {name: MemoryCluster() for name in ("local", "other")}
    factories = {
        name: lambda session_name, name=name, **kwargs: MemoryScheduler(session_name, clusters[name], name)
        for name in clusters
    }
    return Runner("holdfast", {"broken": lambda session_name, **kwargs: CannotList(session_name), **factories})


def submit(runner: Runner, scheduler: str, name: str) -> str:
    return runner.run(AppDef(name, [Role("r", "", entrypoint="true")]), scheduler)


def test_the_whole_handle_is_taken_as_it_is(runner: Runner) -> None:
    assert find_handle(runner, "any://where/x") == "any://where/x"


def test_an_id_or_its_beginning_will_do_where_only_one_job_has_it(runner: Runner) -> None:
    handle = submit(runner, "local", "echo")
    submit(runner, "local", "train")

    assert find_handle(runner, handle.rpartition("/")[2]) == handle
    assert find_handle(runner, "ec") == handle


def test_the_whole_id_wins_over_the_beginning_of_another(runner: Runner) -> None:
    handles = [submit(runner, "local", "echo") for _ in range(12)]

    assert find_handle(runner, "echo-1") == handles[0]  # and not echo-10


def test_what_could_be_several_jobs_is_refused_with_their_names(runner: Runner) -> None:
    for _ in range(7):
        submit(runner, "local", "echo")

    with pytest.raises(UsageError, match=r"'echo' could be any of 7 jobs: local://holdfast/echo-1, .*…"):
        find_handle(runner, "echo")


def test_other_schedulers_are_asked_where_the_default_one_has_no_such_job(runner: Runner) -> None:
    handle = submit(runner, "other", "far")

    assert find_handle(runner, "far") == handle


def test_an_unknown_job_is_reported(runner: Runner) -> None:
    with pytest.raises(UsageError, match="there is no job 'nothing'; `holdfast list` shows none"):
        find_handle(runner, "nothing")


@pytest.mark.parametrize(
    ("code", "reason", "last_line", "said"),
    [
        (3, "", "no", " (exit code 3): its last line was: no"),
        (3, "", "", " (exit code 3)"),
        (1, "rank 1: ValueError: no", "", " (exit code 1): rank 1: ValueError: no"),
        (-6, "", "", " (killed by SIGABRT)"),
        (-9, "from outside", "", " (killed by SIGKILL): from outside"),
        (3, None, "", " (exit code 3): the whole cause"),
        (None, None, "", ": the whole cause"),
    ],
)
def test_how_and_why_a_replica_ended_are_each_said_once(
    code: int | None, reason: str | None, last_line: str, said: str
) -> None:
    failed = ReplicaStatus(0, AppState.FAILED, "r", exit_code=code, cause="the whole cause", reason=reason)
    failed.last_line = last_line

    assert _why(failed) == said


def test_a_last_line_that_is_on_the_screen_is_not_said_again() -> None:
    failed = ReplicaStatus(0, AppState.FAILED, "r", exit_code=3, cause="x", reason="", last_line="no")

    assert _why(failed, shown=True) == " (exit code 3)"


def test_a_replica_of_which_nothing_is_known_is_told_as_such() -> None:
    assert _why(ReplicaStatus(0, AppState.FAILED, "r")) == " (no exit code is known)"
