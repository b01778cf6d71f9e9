"""The runner over a scheduler in memory: from app to job, and from job to what became of it."""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import JobTimeoutError, UsageError
from holdfast.runner import Runner, get_runner
from holdfast.schedulers import Stream
from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.specs import (
    AppDef,
    AppState,
    MalformedAppHandleError,
    Role,
    UnknownAppError,
    UnknownSchedulerError,
)
from holdfast.testing.memory_scheduler import MemoryCluster, MemoryScheduler
from holdfast.workspace import WorkspaceMixin
from tests.runner.conftest import app

NOWHERE = "memory://here/nothing"


def test_a_job_is_submitted_watched_and_read(runner: Runner) -> None:
    handle = runner.run(app("echo hello; echo world"), "memory")
    status = runner.wait(handle)

    assert handle.startswith("memory://here/app-")
    assert status is not None
    assert (status.state, status.exit_code) == (AppState.SUCCEEDED, 0)
    assert list(runner.log_lines(handle, "role0")) == ["hello", "world"]


def test_run_waits_for_the_job_and_returns_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))

    component = holdfast.run("utils.echo", ["--msg", "hello"])
    failed = holdfast.run(app("exit 3"), scheduler="local", timeout=timedelta(minutes=5))

    assert component.state is AppState.SUCCEEDED
    assert (failed.state, failed.exit_code) == (AppState.FAILED, 3)
    with pytest.raises(UsageError, match="an AppDef takes no args"):
        holdfast.run(app(), ["--msg", "hello"])


@pytest.mark.parametrize("timeout", [0, timedelta(0)])
def test_a_wait_that_ends_before_the_job_says_so(runner: Runner, timeout: float | timedelta) -> None:
    handle = runner.run(app("sleep 1000"), "memory")

    with pytest.raises(JobTimeoutError, match="is still RUNNING after 0 s; it goes on"):
        runner.wait(handle, timeout=timeout)


def test_a_dry_run_submits_nothing_and_can_be_submitted_later(runner: Runner) -> None:
    info = runner.dryrun(app(), "memory", {"queue": "fast"})

    assert runner.list("memory") == []
    assert info.cfg == {"queue": "fast"}
    assert "echo hello" in str(info)
    handle = runner.schedule(info)
    assert [job.app_handle for job in runner.list("memory")] == [handle]


def test_the_callers_app_is_never_changed(runner: Runner) -> None:
    mine = app("echo a", "echo b", env={"A": "1"})
    before = copy.deepcopy(mine)

    runner.run(mine, "memory", parent_run_id="p")

    assert mine == before


def test_replicas_are_told_their_job_and_its_parent(runner: Runner) -> None:
    info = runner.dryrun(app(env={"MINE": "1"}), "memory", parent_run_id="parent")
    env = info.request.app.roles[0].env

    # The scheduler puts the id in place of the macro, where it is known.
    assert env["HOLDFAST_JOB_ID"] == env["TORCHX_JOB_ID"] == "memory://here/${app_id}"
    assert env["HOLDFAST_PARENT_RUN_ID"] == env["TORCHX_PARENT_RUN_ID"] == "parent"
    assert env["MINE"] == "1"


def test_waiting_ends_with_the_job(runner: Runner, cluster: MemoryCluster) -> None:
    handle = runner.run(app("sleep 1000"), "memory")
    ended = threading.Timer(0.05, cluster.end, [handle.rpartition("/")[2], 3])
    ended.start()
    status = runner.wait(handle)
    ended.join()

    assert status is not None
    assert (status.state, status.exit_code) == (AppState.FAILED, 3)


def test_waiting_gives_up_at_its_timeout_and_the_job_goes_on(runner: Runner) -> None:
    handle = runner.run(app("sleep 1000"), "memory")

    with pytest.raises(JobTimeoutError, match=r"still RUNNING after 0\.05 s") as raised:
        runner.wait(handle, timeout=0.05)
    assert isinstance(raised.value, TimeoutError)
    assert runner.status(handle).state is AppState.RUNNING  # type: ignore[union-attr]


def test_a_cancelled_job_ends_and_a_deleted_one_is_gone(runner: Runner) -> None:
    handle = runner.run(app("sleep 1000"), "memory")
    runner.cancel(handle)
    assert runner.wait(handle).state is AppState.CANCELLED  # type: ignore[union-attr]
    runner.delete(handle)

    assert runner.status(handle) is None
    assert runner.describe(handle) is None
    assert runner.wait(handle) is None


def test_cancelling_and_deleting_what_is_gone_is_no_error(runner: Runner) -> None:
    runner.cancel(NOWHERE)
    runner.kill(NOWHERE)
    runner.delete(NOWHERE)


def test_stop_is_the_old_name_of_cancel(runner: Runner) -> None:
    handle = runner.run(app("sleep 1000"), "memory")
    with pytest.warns(DeprecationWarning, match="now called Runner.cancel"):
        runner.stop(handle)

    assert runner.status(handle).state is AppState.CANCELLED  # type: ignore[union-attr]


def test_a_job_is_described_as_it_was_submitted(runner: Runner) -> None:
    mine = app("echo a", "echo b")
    mine.metadata["team"] = "vision"
    found = runner.describe(runner.run(mine, "memory"))

    assert found is not None
    assert (found.name, found.metadata) == ("app", {"team": "vision"})
    assert [role.args for role in found.roles] == [["-c", "echo a"], ["-c", "echo b"]]


def test_log_lines_are_chosen_by_regex_stream_and_time(runner: Runner) -> None:
    handle = runner.run(app("echo one; echo two >&2; echo three"), "memory")
    soon = datetime.now().astimezone() + timedelta(hours=1)

    assert list(runner.log_lines(handle, "role0", regex="^t")) == ["two", "three"]
    assert list(runner.log_lines(handle, "role0", streams=Stream.STDERR)) == ["two"]
    assert list(runner.log_lines(handle, "role0", since=soon)) == []
    assert list(runner.log_lines(handle, "role0", until=soon)) == ["one", "two", "three"]


def test_mistakes_about_jobs_are_told_in_a_sentence(runner: Runner) -> None:
    with pytest.raises(UnknownAppError, match="no job"):
        runner.log_lines(NOWHERE, "role0")
    with pytest.raises(MalformedAppHandleError):
        runner.status("app-1")
    with pytest.raises(UnknownSchedulerError, match="slurmm"):
        runner.run(app(), "slurmm")
    with pytest.raises(UsageError, match="not a regular expression"):
        runner.log_lines(NOWHERE, "role0", regex="(")


def test_run_options_are_read_by_the_scheduler(runner: Runner) -> None:
    assert runner.cfg_from_str("memory", "queue=a", "queue=b") == {"queue": "b"}
    assert [name for name, _ in runner.scheduler_run_opts("memory")] == ["queue"]
    assert runner.scheduler_backends() == ["memory"]


def test_closing_closes_the_schedulers_that_were_used(cluster: MemoryCluster) -> None:
    made: list[MemoryScheduler] = []

    def create(session_name: str, **kwargs: Any) -> MemoryScheduler:
        made.append(MemoryScheduler(session_name, cluster))
        return made[-1]

    with Runner("here", {"memory": create, "never": create}) as runner:
        runner.list("memory")
        runner.list("memory")

    assert [scheduler.closed for scheduler in made] == [True]


def test_variables_of_torchx_and_parameters_reach_the_factories(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def create(session_name: str, **kwargs: Any) -> MemoryScheduler:
        seen.update(kwargs)
        return MemoryScheduler(session_name)

    monkeypatch.setenv("TORCHX_REGION", "north")
    monkeypatch.setenv("TORCHX_ZONE", "env")
    Runner("here", {"memory": create}, scheduler_params={"torchx_zone": "mine", "depth": 3}).list("memory")

    assert {"torchx_region": "north", "torchx_zone": "mine", "depth": 3}.items() <= seen.items()


def test_components_are_called_with_words_or_values_and_their_defaults(runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from holdfast.specs import AppDef, Role\n"
        "def trainer(name: str, count: int = 1) -> AppDef:\n"
        "    return AppDef(name, [Role('r', '', entrypoint='echo', args=['hi'], num_replicas=count)])\n"
    )
    component = f"{file}:trainer"
    runner = Runner("here", runner._factories, component_defaults={component: {"count": 2}})

    words = runner.dryrun_component(component, ["--name", "a"], "memory").app
    values = runner.dryrun_component(component, {"name": "b", "count": 3}, "memory").app

    assert words is not None
    assert values is not None
    assert (words.name, words.roles[0].num_replicas) == ("a", 2)
    assert (values.name, values.roles[0].num_replicas) == ("b", 3)
    assert runner.wait(runner.run_component(component, ["--name", "a"], "memory")).state is AppState.SUCCEEDED  # type: ignore[union-attr]


class ShippingScheduler(WorkspaceMixin, MemoryScheduler):
    """Notes what it is asked to build."""

    def build_workspace_and_update_role(self, role: Role, workspace: Any, cfg: Any) -> None:
        role.image = f"{role.image}+{workspace}"
        self.built = [*getattr(self, "built", []), workspace]


def test_a_workspace_goes_to_every_role_that_has_none_of_its_own() -> None:
    scheduler = ShippingScheduler("here")
    runner = Runner("here", {"memory": lambda session_name, **kwargs: scheduler})
    mine = app("echo a", "echo b", "echo c")
    mine.roles[1].workspace = "/own"
    request = runner.dryrun(mine, "memory", workspace="/given").request

    assert [role.image for role in request.app.roles] == ["+/given", "+/own", "+/given"]
    assert scheduler.built == ["/given", "/own"]  # equal ones are built once


def test_a_run_ships_its_workspace(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "words").write_text("shipped words\n")
    factories = {"local": lambda session_name, **kwargs: LocalScheduler(session_name, tmp_path / "home")}
    with Runner("here", factories) as runner:
        handle = runner.run(app("pwd; cat words"), "local", workspace=str(tmp_path / "code"))
        runner.wait(handle)
        where, words = runner.log_lines(handle, "role0")
        runner.delete(handle)

    assert where.startswith(str(tmp_path / "home"))
    assert words == "shipped words"


def test_a_scheduler_that_ships_nothing_refuses_a_workspace(runner: Runner) -> None:
    with pytest.raises(UsageError, match="'memory' cannot ship a workspace"):
        runner.dryrun(app(), "memory", workspace=os.curdir)


def test_an_app_without_a_scheduler_named_in_its_request_is_refused(runner: Runner) -> None:
    info = runner.dryrun(app(), "memory")
    info._scheduler = None

    with pytest.raises(UsageError, match=r"take it from `Runner\.dryrun`"):
        runner.schedule(info)


def test_get_runner_has_every_installed_scheduler() -> None:
    with get_runner() as runner:
        assert runner.scheduler_backends()[0] == "local"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": ""}, "the app's name is ''"),
        ({"roles": []}, "has no roles"),
    ],
)
def test_an_app_that_cannot_run_is_refused(runner: Runner, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        runner.dryrun(dataclasses.replace(app(), **change), "memory")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "a/b"}, "cannot be the name of a role"),
        ({"entrypoint": "<MISSING>"}, "has no entrypoint"),
        ({"entrypoint": ""}, "has no entrypoint"),
        ({"num_replicas": 0}, "must be 1 or more"),
        ({"num_replicas": -1}, "has -1 replicas"),
        ({"min_replicas": 5}, "between 1 and num_replicas=1"),
        ({"max_retries": -1}, "must be 0 or more"),
        ({"env": {"A=B": "1"}}, "not a valid name"),
        ({"env": {"A": 1}}, "as text"),
        ({"args": ["a", 1]}, "arguments as text"),
    ],
)
def test_a_role_that_cannot_run_is_refused(runner: Runner, change: dict[str, Any], sentence: str) -> None:
    broken = AppDef("app", [dataclasses.replace(app().roles[0], **change)])

    with pytest.raises(UsageError, match=sentence):
        runner.dryrun(broken, "memory")


def test_two_roles_of_one_name_are_refused(runner: Runner) -> None:
    mine = app("echo a", "echo b")
    mine.roles[1].name = "role0"

    with pytest.raises(UsageError, match="two roles called 'role0'"):
        runner.dryrun(mine, "memory")
