"""What the schedulers of clusters share."""

import subprocess

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers import cluster
from holdfast.schedulers.local.record import RolePlan
from holdfast.specs import AppDef, AppState, ReplicaStatus, RetryPolicy, Role


def request(**role):
    main = Role("main", "", entrypoint="sh", args=["-c", "echo ${app_id} ${replica_id}"], **role)
    site = cluster.Site("slurm", "s", cluster.JOB_ID, {"main": "/code"})
    return cluster.plan(AppDef("app", [main]), {}, site)


def test_a_machine_fills_in_what_only_it_knows():
    whole = request(num_replicas=2, env={"RANK0": "$${${rank0_env}}"})
    values = {
        cluster.JOB_FOLDER: "/j",
        cluster.JOB_ID: "7",
        cluster.FIRST_HOST: "a",
        cluster.PORT: "1",
        "<PATH>": "/bin",
    }
    mine = cluster.fill(cluster.portion(whole, "main", 1), values).replicas

    assert [each.argv for each in mine] == [["sh", "-c", "echo 7 1"]]
    assert mine[0].env["PATH"] == "/j/bin:/bin:/code"
    assert mine[0].env["HOLDFAST_LOCAL_RDZV_PORT"] == "1"
    assert mine[0].env["TORCHX_RANK0_HOST"] == "a"
    assert mine[0].log_dir == "/j/logs/main/1"
    assert whole.replicas[1].argv == ["sh", "-c", "echo <job id> 1"], "the whole stays as it was"


@pytest.mark.parametrize(("policy", "alone", "together"), [("REPLICA", 3, 0), ("APPLICATION", 0, 3), ("ROLE", 0, 3)])
def test_retries_belong_to_the_replica_or_to_the_whole(policy, alone, together):
    whole = request(max_retries=3, retry_policy=RetryPolicy[policy])

    assert cluster.portion(whole, "main", 0).role_plans == [RolePlan("main", alone, RetryPolicy.REPLICA)]
    assert cluster.retries(whole) == together


def test_a_replica_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="no replica main/7"):
        cluster.portion(request(), "main", 7)


def replicas(*states):
    return [
        ReplicaStatus(n, AppState[state], "main", "h", exit_code={"FAILED": 3}.get(state), cause="boom", ended_at=n)
        for n, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("states", "least", "state", "code"),
    [
        (["SUCCEEDED", "SUCCEEDED"], None, "SUCCEEDED", 0),
        (["SUCCEEDED", "FAILED"], None, "FAILED", 3),
        (["SUCCEEDED", "FAILED"], 1, "SUCCEEDED", 0),
        (["FAILED", "FAILED"], 1, "FAILED", 3),
        (["CANCELLED", "CANCELLED"], 1, "FAILED", 1),
        ([], 1, "FAILED", 1),
    ],
)
def test_a_job_has_succeeded_where_enough_replicas_have(states, least, state, code):
    ended = cluster.conclude([RolePlan("main", min_replicas=least)], replicas(*states))

    assert (ended.state.name, ended.exit_code) == (state, code)


def test_what_was_lost_on_the_way_is_told():
    ended = cluster.conclude([RolePlan("main", min_replicas=1)], replicas("SUCCEEDED", "FAILED"))

    assert ended.msg == "main/1 on h failed: boom; the job went on without it"


def test_the_python_of_a_job_passes_everything_on(tmp_path):
    script = tmp_path / "python"
    script.write_text(cluster.python_script("/bin/echo", "/a b"))
    done = subprocess.run(["sh", str(script), "x  y", "$z"], capture_output=True, text=True, check=True)

    assert done.stdout == "x  y $z\n"
