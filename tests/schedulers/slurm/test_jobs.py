"""What jobs do on a real Slurm, beyond the contract."""

import os
import re
import subprocess
import sys

import psutil
import pytest

from holdfast.errors import UsageError
from holdfast.schedulers.slurm.scheduler import SlurmScheduler
from holdfast.specs import AppState, RetryPolicy
from tests.schedulers.acceptance import only_in_test_clusters
from tests.schedulers.job_bench import PATIENCE_S, JobBench
from tests.schedulers.slurm.slurm_cluster import wait_for

pytestmark = only_in_test_clusters


@pytest.fixture
def bench(cluster, tmp_path):
    home = tmp_path / "home"
    made = JobBench(SlurmScheduler("test", home), home)
    yield made
    made.clear()


def test_several_roles_run_as_one_heterogeneous_job(bench):
    app_id = bench.submit_app(
        [
            bench.role("echo $$HOLDFAST_ROLE ${replica_id} of ${app_id}", num_replicas=2),
            bench.role("echo $$HOLDFAST_ROLE ${replica_id}; exit 3", name="other"),
        ]
    )
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert [[each.state.name for each in role.replicas] for role in found.roles_statuses] == [
        ["SUCCEEDED", "SUCCEEDED"],
        ["FAILED"],
    ]
    assert [bench.lines(app_id, k=k) for k in (0, 1)] == [[f"main {k} of {app_id}"] for k in (0, 1)]
    assert bench.lines(app_id, "other") == ["other 0"]
    assert len({each.hostname for role in found.roles_statuses for each in role.replicas}) == 3
    assert found.roles_statuses[1].replicas[0].exit_code == 3


def test_a_job_that_fails_is_tried_again_as_often_as_it_may(bench):
    app_id = bench.submit("echo try; exit 7", max_retries=2)
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert found.num_restarts == 2
    assert found.msg.endswith("(after 2 retries)")
    assert bench.lines(app_id) == ["try"] * 3


def test_a_replica_may_be_tried_again_alone(bench):
    script = "echo try $$HOLDFAST_RESTART_COUNT; test ${replica_id} = 0 || test $$HOLDFAST_RESTART_COUNT = 1"
    app_id = bench.submit(script, num_replicas=2, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED
    assert [bench.lines(app_id, k=k) for k in (0, 1)] == [["try 0"], ["try 0", "try 1"]]


def test_an_elastic_role_takes_as_many_nodes_as_there_are(bench):
    app_id = bench.submit("echo here", num_replicas=6, min_replicas=2)
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED
    assert [each.state.name for each in found.roles_statuses[0].replicas] == ["SUCCEEDED"] * 4


def test_a_job_that_waits_says_why_and_can_be_cancelled(bench):
    first = bench.submit("sleep 600", {"sbatch": {"exclusive": ""}}, num_replicas=4)
    bench.wait(first, lambda found: found.state is AppState.RUNNING)
    second = bench.submit("echo never", num_replicas=4)
    found = bench.wait(second, lambda found: "Resources" in found.msg)

    assert found.state is AppState.PENDING
    assert found.msg == "waits in the queue: Resources (the nodes that it needs are not free)"
    bench.scheduler.cancel(second)
    assert bench.wait(second).state is AppState.CANCELLED
    assert bench.lines(second) == []


def test_what_slurm_refuses_is_told_in_its_words(bench):
    with pytest.raises(UsageError, match=r"sbatch refused the job: .*artition"):
        bench.submit("echo", {"partition": "no-such"})
    assert list((bench.home / "slurm" / "test" / ".jobs").glob("*")) == [], "nothing is left of it"


def test_a_python_that_is_not_there_is_told(bench):
    found = bench.wait(bench.submit("echo", {"python": "/no/such/python"}))

    assert found.state is AppState.FAILED
    assert "the batch program could not start (exit code 127)" in found.msg
    assert "/no/such/python" in found.msg


def test_an_array_is_several_jobs(bench):
    app_id = bench.submit("echo ${app_id}; test $$SLURM_ARRAY_TASK_ID = 1", {"array": "1-2"})
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert "1 FAILED, 1 SUCCEEDED" in found.msg
    assert bench.scheduler.describe(f"{app_id}_1").state is AppState.SUCCEEDED
    assert bench.scheduler.describe(f"{app_id}_2").state is AppState.FAILED
    assert bench.lines(f"{app_id}_2") == [f"{app_id}_2"]


def test_the_secret_is_only_in_a_file_that_its_user_reads(bench, monkeypatch):
    monkeypatch.setenv("HOLDFAST_SECRET", "a-secret-of-32-letters-or-more-for-a-test")
    app_id = bench.submit("env; cat $$HOLDFAST_SECRET_FILE; sleep 600", env={"TOKEN": "the-token-of-the-app"})
    bench.wait_line(app_id, "a-secret-of-32-letters-or-more-for-a-test")
    shown = subprocess.run(["scontrol", "show", "job", app_id], capture_output=True, text=True, check=True).stdout
    script = subprocess.run(["scontrol", "write", "batch_script", app_id, "-"], capture_output=True, text=True).stdout
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    environs = [str(each.info["environ"]) for each in psutil.process_iter(["environ"]) if each.pid != os.getpid()]

    for text in (shown, script, *commands):
        assert "a-secret-of-32" not in text
        assert "the-token-of-the-app" not in text
    assert not any("a-secret-of-32" in text for text in environs)
    folder = (bench.home / "slurm" / "test" / app_id).resolve()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600


def test_a_job_that_slurm_has_forgotten_is_still_known(bench, monkeypatch):
    app_id = bench.submit("exit 5")
    bench.wait(app_id)
    from holdfast.schedulers.slurm import client

    (completed,) = client._completed(app_id)
    assert (completed.id, completed.state, completed.exit_code) == (app_id, "FAILED", 5)
    monkeypatch.setattr(client, "find", lambda _: [])
    found = bench.scheduler.describe(app_id)
    assert found.state is AppState.FAILED
    assert found.roles_statuses[0].replicas[0].exit_code == 5


def test_a_launch_in_a_step_finds_its_peers(cluster, tmp_path):
    script = tmp_path / "who.py"
    script.write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    launch = [sys.executable, "-m", "holdfast", "launch", "--nproc-per-node", "1", str(script)]
    words = ["salloc", "--nodes=3", "srun", "--ntasks-per-node=1", *launch]
    env = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False)

    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank \d of \d", done.stdout)) == [f"rank {n} of 3" for n in range(3)]


def test_a_step_that_ends_while_the_controller_is_away_is_not_lost(bench, cluster, tmp_path):
    gate = tmp_path / "gate"
    app_id = bench.submit(f"echo up; while [ ! -e {gate} ]; do sleep 0.1; done; echo done", num_replicas=2)
    for replica in (0, 1):
        bench.wait_line(app_id, "up", k=replica)
    folder = (bench.home / "slurm" / "test" / app_id).resolve()
    cluster.stop_controller()
    try:
        gate.touch()
        wait_for(lambda: "cannot ask Slurm" in (folder / "batch.log").read_text(), "the batch program asks in vain")
    finally:
        cluster.start_controller()
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED, found.msg
    assert [bench.lines(app_id, k=k) for k in (0, 1)] == [["up", "done"]] * 2


# -- lost nodes and lost time ------------------------------------------------------------------------------------------


def test_workers_are_told_before_the_time_is_over_and_the_job_goes_back_to_the_queue(bench):
    script = "trap 'echo saved; exit 1' TERM; echo start $${SLURM_RESTART_COUNT:-0}; test -z \"$$SLURM_RESTART_COUNT\" "
    script += "|| exit 0; while :; do sleep 0.1; done"
    app_id = bench.submit(script, {"time": "1", "notice_s": 50.0})
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED
    lines = [line for line in bench.lines(app_id) if line != "Terminated"]
    # Slurm may send its notice a minute early, and on a busy machine so before the script has begun.
    assert lines in (["start 0", "saved", "start 1"], ["start 1"])
    assert found.num_restarts == 1


def test_a_preempted_job_saves_and_comes_back(bench):
    script = "trap 'echo saved; exit 1' TERM; echo start $${SLURM_RESTART_COUNT:-0}; test -z \"$$SLURM_RESTART_COUNT\" "
    script += "|| exit 0; while :; do sleep 0.1; done"
    low = bench.submit(script, {"sbatch": {"exclusive": ""}}, num_replicas=4)
    bench.wait_line(low, "start 0")
    high = bench.submit("echo urgent", {"partition": "urgent", "sbatch": {"exclusive": ""}}, num_replicas=4)

    assert bench.wait(high).state is AppState.SUCCEEDED
    found = bench.wait(low)
    assert found.state is AppState.SUCCEEDED
    assert [line for line in bench.lines(low) if line != "Terminated"] == ["start 0", "saved", "start 1"]


def test_too_few_nodes_send_the_job_back_to_the_queue(bench, cluster):
    script = 'echo start $${SLURM_RESTART_COUNT:-0}; test -n "$$SLURM_RESTART_COUNT" || sleep 20; '
    script += 'test -n "$$SLURM_RESTART_COUNT"'
    app_id = bench.submit(script, num_replicas=2)
    bench.wait_line(app_id, "start 0", k=1)
    victim = bench.scheduler.describe(app_id).roles_statuses[0].replicas[1].hostname
    cluster.kill_node(victim)
    try:
        found = bench.wait(app_id)
    finally:
        cluster.revive()

    assert found.state is AppState.SUCCEEDED
    assert found.num_restarts == 1


def test_the_loss_of_the_batch_node_sends_the_job_back_to_the_queue(bench, cluster):
    script = 'echo start $${SLURM_RESTART_COUNT:-0}; test -n "$$SLURM_RESTART_COUNT" || sleep 600'
    app_id = bench.submit(script, {"lost_after_s": 15.0}, num_replicas=2)
    for replica in (0, 1):
        bench.wait_line(app_id, "start 0", k=replica)
    victim = bench.scheduler.describe(app_id).roles_statuses[0].replicas[0].hostname
    cluster.kill_node(victim)
    try:
        found = bench.wait(app_id)
    finally:
        cluster.revive()

    assert found.state is AppState.SUCCEEDED
    assert found.num_restarts == 1
