"""What jobs do on a real Docker and a real Podman, beyond the contract."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.schedulers.containers.scheduler import ContainerScheduler
from holdfast.schedulers.local.folders import JobFolder
from holdfast.specs import AppDef, AppState, Resource, RetryPolicy, Role, is_terminal
from tests.schedulers.acceptance import only_in_test_clusters
from tests.schedulers.containers.engines import IMAGE

pytestmark = only_in_test_clusters
PATIENCE_S = 240.0
SECRET = "a-secret-of-32-letters-or-more-for-a-test"


class Bench:
    """One session of jobs on an engine."""

    def __init__(self, engine, home, cfg):
        self.scheduler = ContainerScheduler(engine, "test", home)
        self.cfg = {**cfg, "cancel_grace_s": 1.0}

    def submit(self, script, cfg=None, workspace=None, **role):
        main = Role("main", IMAGE, entrypoint="sh", args=["-c", script], **role)
        return self.scheduler.submit(AppDef("job", [main]), {**self.cfg, **(cfg or {})}, workspace)

    def wait(self, app_id, until=None):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.scheduler.describe(app_id)
            if until(found) if until is not None else is_terminal(found.state):
                return found
            assert time.monotonic() < deadline, f"still {found}"
            self.scheduler.wait_news(app_id, 1.0)

    def lines(self, app_id, k=0):
        return list(self.scheduler.log_iter(app_id, "main", k))

    def wait_line(self, app_id, k=0):
        return next(iter(self.scheduler.log_iter(app_id, "main", k, should_tail=True)))


@pytest.fixture
def bench(engine, cfg, tmp_path):
    made = Bench(engine.name, tmp_path / "home", cfg)
    yield made
    for app in made.scheduler.list():
        made.scheduler.delete(app.app_id)


def test_replicas_find_each_other_by_name(bench):
    script = (
        "until getent hosts $$TORCHX_RANK0_HOST >/dev/null; do sleep 0.1; done; echo found by $$(hostname); sleep 600"
    )
    app_id = bench.submit(script, num_replicas=2)

    assert [bench.wait_line(app_id, k) for k in (0, 1)] == [f"found by {app_id}-main-{k}" for k in (0, 1)]
    replicas = bench.scheduler.describe(app_id).roles_statuses[0].replicas
    assert [each.hostname for each in replicas] == [f"{app_id}-main-{k}" for k in (0, 1)]


@pytest.mark.parametrize("user", ["", "sam"])
def test_the_secret_travels_and_is_seen_nowhere(bench, engine, monkeypatch, user):
    monkeypatch.setenv("HOLDFAST_SECRET", SECRET)
    script = "cat $$HOLDFAST_SECRET_FILE; stat -c %a:%U $$HOLDFAST_SECRET_FILE; sleep 600"
    app_id = bench.submit(script, {"user": user} if user else None)
    lines = iter(bench.scheduler.log_iter(app_id, "main", should_tail=True))

    assert [next(lines), next(lines)] == [SECRET, f"600:{user or 'root'}"]
    commands = [str(each.info["cmdline"]) for each in psutil.process_iter(["cmdline"])]
    assert SECRET not in str(commands)
    assert SECRET not in engine.call("inspect", f"{app_id}-main-0")


@pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
def test_retries_are_counted_as_everywhere(bench, policy):
    script = "echo start ${replica_id}; test ${replica_id} = 0 || test $$HOLDFAST_RESTART_COUNT = 1"
    app_id = bench.submit(script, num_replicas=2, max_retries=1, retry_policy=policy)
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED, found
    assert found.num_restarts == 1
    assert bench.lines(app_id, 1) == ["start 1", "start 1"]
    assert set(bench.lines(app_id, 0)) == {"start 0"}
    assert policy is RetryPolicy.APPLICATION or len(bench.lines(app_id, 0)) == 1


def test_a_job_whose_retries_are_spent_fails_with_its_exit_code(bench):
    found = bench.wait(bench.submit("exit 7", max_retries=1))

    assert found.state is AppState.FAILED
    assert found.roles_statuses[0].replicas[0].exit_code == 7
    assert "after 1 retries" in found.msg


def test_a_container_that_is_killed_is_told_as_such(bench, engine):
    app_id = bench.submit("echo up; sleep 600")
    bench.wait_line(app_id)
    engine.kill(f"{app_id}-main-0")
    (replica,) = bench.wait(app_id).roles_statuses[0].replicas

    assert replica.exit_code == -9
    assert "SIGKILL from outside Holdfast" in replica.cause


def test_too_much_memory_is_told(bench, engine):
    if engine.name == "podman":
        pytest.skip("Podman 4.3 does not tell, on cgroups of version 1")
    limit = Resource(cpu=1, gpu=0, memMB=32)
    found = bench.wait(bench.submit("python -c 'x = bytearray(1 << 30)'", resource=limit))

    assert "out of memory: the container used more than 32m" in found.msg


def test_containers_end_with_their_supervisor(bench, engine):
    app_id = bench.submit("trap '' TERM; echo up; sleep 600 & wait; sleep 600")
    bench.wait_line(app_id)
    folder = JobFolder(bench.scheduler._local.job_folder(app_id))
    os.kill(folder.read_state().supervisor.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while engine.left():
        assert time.monotonic() < deadline, engine.left()
        time.sleep(0.1)
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert "was killed" in found.msg


def test_a_job_is_killed_at_once(bench, engine):
    app_id = bench.submit("trap '' TERM; echo up; sleep 600 & wait; wait; sleep 600", {"cancel_grace_s": 600.0})
    bench.wait_line(app_id)
    bench.scheduler.kill(app_id)

    assert bench.wait(app_id).state is AppState.CANCELLED
    assert engine.left() == []


def test_a_restarted_daemon_does_not_end_a_job(bench, engine):
    if engine.name == "podman":
        pytest.skip("Podman has no daemon")
    app_id = bench.submit("echo up; while ! test -e /tmp/go; do sleep 0.1; done; echo down")
    bench.wait_line(app_id)
    engine.stop_daemon()
    engine.start_daemon()
    engine.call("exec", f"{app_id}-main-0", "touch", "/tmp/go")

    assert bench.wait(app_id).state is AppState.SUCCEEDED
    assert bench.lines(app_id)[0] == "up"


def test_a_workspace_becomes_an_image_that_goes_with_its_job(bench, engine, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "said.txt").write_text("hello from the workspace\n")
    plain = bench.submit("cat said.txt", workspace=str(code))
    (code / "Dockerfile.holdfast").write_text("ARG IMAGE\nFROM $IMAGE\nCOPY said.txt /told.txt\n")
    own = bench.submit("cat /told.txt", workspace=str(code))

    assert [bench.wait(each).state for each in (plain, own)] == [AppState.SUCCEEDED] * 2
    assert [bench.lines(each) for each in (plain, own)] == [["hello from the workspace"]] * 2
    for each in (plain, own):
        bench.scheduler.delete(each)
    assert engine.left() == []


def test_what_workers_leave_is_copied_out(bench):
    app_id = bench.submit("mkdir -p $$PET_LOG_DIR/x && echo kept >$$PET_LOG_DIR/x/y; exit 1")
    bench.wait(app_id)
    root = bench.scheduler.log_folder(app_id)

    assert Path(root, "main", "0", "workers", "x", "y").read_text() == "kept\n"


def test_an_image_that_is_not_there_is_told_and_nothing_is_started(bench, engine):
    with pytest.raises((UsageError, UnavailableError), match="the image no-such:1 cannot be used"):
        bench.scheduler.submit(AppDef("job", [Role("main", "no-such:1", entrypoint="sh")]), {"pull": "never"})
    assert bench.scheduler.list() == []
    assert engine.left() == []


def test_an_engine_that_does_not_answer_is_told(bench, engine, monkeypatch):
    if engine.name == "podman":
        pytest.skip("Podman has no daemon")
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with pytest.raises(UnavailableError, match="docker does not answer"):
        bench.submit("echo")
    monkeypatch.setenv("DOCKER_HOST", engine.environ["DOCKER_HOST"])
