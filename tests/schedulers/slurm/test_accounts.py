"""What the accounts of a real Slurm say, kept by slurmdbd in MariaDB, of jobs that the controller has forgotten."""

import pytest

from holdfast.schedulers.slurm import client
from holdfast.schedulers.slurm.scheduler import SlurmScheduler
from holdfast.specs import AppState
from tests.schedulers.acceptance import only_in_test_clusters
from tests.schedulers.job_bench import JobBench
from tests.schedulers.slurm.slurm_cluster import SlurmCluster, wait_for, why_not

pytestmark = only_in_test_clusters


@pytest.fixture(scope="module")
def accounted(tmp_path_factory):
    if reason := why_not(accounts=True):
        pytest.skip(reason)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), 2, accounts=True)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def bench(accounted, monkeypatch, tmp_path):
    for name, value in accounted.environ.items():
        monkeypatch.setenv(name, value)
    made = JobBench(SlurmScheduler("test", tmp_path / "home"), tmp_path / "home")
    yield made
    made.clear()


def in_accounts(job_id, state):
    """Wait until the accounts, which are written behind the controller's back, say how a job ended."""
    wait_for(lambda: [each.state for each in client._accounted(job_id)] == [state], f"the accounts say {state}")
    return client._accounted(job_id)[0]


@pytest.mark.parametrize(
    ("script", "state", "code", "app_state"),
    [("true", "COMPLETED", 0, AppState.SUCCEEDED), ("exit 7", "FAILED", 7, AppState.FAILED)],
    ids=["succeeds", "fails"],
)
def test_a_job_that_only_the_accounts_know(bench, monkeypatch, script, state, code, app_state):
    job_id = bench.submit(script, num_replicas=2)
    known = bench.wait(job_id)
    account = in_accounts(job_id, state)
    monkeypatch.setattr(client, "find", client._accounted)
    found = SlurmScheduler("test", bench.home).describe(job_id)

    assert (account.id, account.exit_code) == (job_id, code)
    assert account.nodes == "n[1-2]"
    assert found.state is known.state is app_state
    assert found.msg == known.msg
    assert (found.submitted_at, found.started_at) == (known.submitted_at, known.started_at)
    assert found.ended_at == pytest.approx(known.ended_at, abs=2)  # Slurm counts whole seconds


def test_a_cancelled_job(bench):
    job_id = bench.submit("sleep 600")
    bench.wait(job_id, lambda found: found.state is AppState.RUNNING)
    bench.scheduler.cancel(job_id)
    bench.wait(job_id)

    assert in_accounts(job_id, "CANCELLED").app_state is AppState.CANCELLED


def test_a_requeued_job_is_as_its_last_run_was(bench):
    job_id = bench.submit('echo $${SLURM_RESTART_COUNT:-0}; test -n "$$SLURM_RESTART_COUNT" || sleep 600')
    bench.wait_line(job_id, "0")
    assert client.requeue(job_id) == ""
    bench.wait(job_id)

    assert in_accounts(job_id, "COMPLETED").app_state is AppState.SUCCEEDED


def test_a_run_of_an_array(bench):
    job_id = bench.submit("test $$SLURM_ARRAY_TASK_ID = 1", {"array": "1-2"})
    bench.wait(job_id)

    assert in_accounts(f"{job_id}_1", "COMPLETED").exit_code == 0
    assert in_accounts(f"{job_id}_2", "FAILED").exit_code == 1
