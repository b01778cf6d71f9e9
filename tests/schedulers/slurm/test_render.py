"""From an app to a batch script and its step."""

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers import cluster
from holdfast.schedulers.slurm.decide import After, Move, decide, outlives_first
from holdfast.schedulers.slurm.options import time_limit_s
from holdfast.schedulers.slurm.render import SlurmRequest, render, show, step_command
from holdfast.specs import AppDef, AppState, BindMount, Resource, RetryPolicy, Role, VolumeMount

SECRET = "a-value-that-only-the-app-may-see"


def role(name="main", **changes):
    known = {"image": "", "entrypoint": "prog", "resource": Resource(2, 4, 1024), "env": {"K": SECRET}}
    return Role(name, **{**known, **changes})


def make(*roles, **cfg):
    app = AppDef("my app", list(roles))
    site = cluster.Site("slurm", "s", cluster.JOB_ID, {each.name: "/code" for each in roles})
    return render(app, cfg, cluster.plan(app, {}, site), "/jobs/a", "/venv/bin/python")


def test_the_script_asks_for_nodes_and_starts_the_batch_program():
    script = make(role(num_replicas=2), notice_s=60.0, time="10").script()

    assert script.splitlines() == [
        "#!/bin/sh",
        "#SBATCH --job-name=my-app",
        "#SBATCH --output=/jobs/a/batch.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --no-kill",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --time=10",
        "#SBATCH --nodes=2",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --mem=1024M",
        "#SBATCH --gpus-per-node=4",
        "exec /venv/bin/python -P -m holdfast.schedulers.slurm.batch /jobs/a",
    ]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("8:00:00", 28800),
        ("1-12", 129600),
        ("1-0:30", 88200),
        ("2-00:00:10", 172810),
        ("", None),
        ("0", None),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_time_limits_are_read_as_sbatch_does(time, seconds):
    assert time_limit_s(time) == seconds


def test_a_job_with_little_time_is_not_told_to_leave_as_soon_as_it_begins():
    flags = [make(role(), notice_s=120.0, time=time).flags["signal"] for time in ("2", "10", "UNLIMITED")]
    flags.append(make(role(), notice_s=120.0, sbatch={"t": "1:00"}).flags["signal"])

    assert flags == ["B:USR1@60", "B:USR1@120", "B:USR1@120", "B:USR1@30"]


def test_an_elastic_role_takes_what_it_gets():
    assert "#SBATCH --nodes=2-4" in make(role(num_replicas=4, min_replicas=2)).script()


def test_several_roles_are_a_heterogeneous_job():
    request = make(role(), role("b", num_replicas=2, resource=Resource(1, 0, 0)), partition="p", account="me")
    first, second = request.script().split("#SBATCH hetjob\n")

    assert "--account=me" in first
    assert "--account" not in second
    assert "--partition=p" in first
    assert "--partition=p" in second
    assert "--gpus-per-node" not in second
    words = step_command(request, [1, 2])
    assert words.count(":") == 1
    assert words[-2:] == ["b", "1"], "the second role's tasks are numbered from 1"
    assert {"--het-group=0", "--het-group=1"} <= set(words)


def test_a_step_survives_what_happens_to_one_of_its_tasks():
    words = step_command(make(role(num_replicas=2)), [2], ["n1,n2"])

    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1", "--nodelist=n1,n2"} <= set(words)


def test_any_flag_of_sbatch_can_be_given():
    script = make(role(), sbatch={"exclusive": "", "--licenses": "a@b", "-t": "5", "begin": "now+1 hour"}).script()

    assert "#SBATCH --exclusive\n" in script
    assert "#SBATCH --licenses=a@b\n" in script
    assert "#SBATCH --time=5\n" in script
    assert '#SBATCH --begin="now+1 hour"\n' in script
    assert "--cpus-per-task" not in script, "an exclusive node has all of its CPUs"


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"sbatch": {"nodes": "3"}}, "-j says how many nodes"),
        ({"sbatch": {"o": "", "output": "x"}}, "holdfast log"),
        ({"time": "1", "sbatch": {"t": "2"}}, "given twice"),
        ({"comment": "a\nb"}, "two lines"),
    ],
)
def test_flags_that_would_break_the_job_are_refused(cfg, said):
    with pytest.raises(UsageError, match=said):
        make(role(), **cfg).script()


def test_gres_and_mem_replace_what_the_app_asks_for():
    script = make(role(), gres="gpu:a100:8", mem="0").script()

    assert "--gres=gpu:a100:8" in script
    assert "--mem=0" in script
    assert "gpus-per-node" not in script
    assert "1024M" not in script


def test_what_slurm_gets_holds_no_variable_of_the_app():
    request = make(role())

    assert SECRET not in request.script()
    assert SECRET not in str(step_command(request, [1]))
    assert SECRET in show(request), "a dry run is for the user alone"


def test_an_image_is_a_container_with_its_mounts():
    request = make(role(image="repo/img:1", mounts=[BindMount("/data", "/d", read_only=True)]))

    assert "--container-image=repo/img:1" in request.groups[0].step_flags
    assert "--container-mounts=/jobs/a:/jobs/a,/data:/d:ro" in request.groups[0].step_flags


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ([role(mounts=[BindMount("/a", "/b")])], "no image"),
        ([role(image="i", mounts=[VolumeMount("a", "/b")])], "binds folders only"),
        ([role(max_retries=1, retry_policy=RetryPolicy.ROLE), role("b")], "as one step"),
    ],
)
def test_what_cannot_run_as_one_step_is_refused(roles, said):
    with pytest.raises(UsageError, match=said):
        make(*roles)


def test_a_request_can_be_read_again():
    request = make(role(num_replicas=3, min_replicas=1), setup="module load x")

    assert SlurmRequest.from_json(request.to_json(), request.job) == request


# -- after a step ------------------------------------------------------------------------------------------------------

GOOD, BAD = cluster.Ended(AppState.SUCCEEDED, "", 0), cluster.Ended(AppState.FAILED, "boom", 3)


@pytest.mark.parametrize(
    ("after", "move", "said"),
    [
        (After(GOOD), Move.END, ""),
        (After(GOOD, notice="n", lost_nodes=True, enough_nodes=False), Move.END, ""),
        (After(BAD), Move.END, "boom"),
        (After(BAD, max_retries=2), Move.AGAIN, "retry 1 of 2"),
        (After(BAD, failures=2, max_retries=2), Move.END, "after 2 retries"),
        (After(BAD, max_retries=2, ending=True), Move.END, "Slurm ended"),
        (After(BAD, notice="time"), Move.REQUEUE, "last checkpoint"),
        (After(BAD, notice="time", may_requeue=False), Move.END, "may not be requeued"),
        (After(BAD, lost_nodes=True), Move.END, "boom"),
        (After(BAD, lost_nodes=True, enough_nodes=False), Move.REQUEUE, "too few nodes"),
        (After(BAD, lost_nodes=True, enough_nodes=False, may_requeue=False), Move.END, "may not be requeued"),
        (After(BAD, lost_nodes=True, max_retries=1), Move.AGAIN, "retry 1 of 1"),
    ],
)
def test_what_comes_after_a_step(after, move, said):
    found, sentence = decide(after)

    assert found is move
    assert said in sentence


@pytest.mark.parametrize(
    ("conf", "by_default", "nodes", "goes_on"),
    [
        ("--rdzv-conf takeover=true", False, 3, True),
        ("--rdzv-conf takeover=true", False, 2, False),  # then too few are left
        ("--rdzv-conf takeover=false", True, 3, False),
        ("", True, 3, True),
        ("", False, 3, False),
    ],
)
def test_a_job_without_its_first_node(conf, by_default, nodes, goes_on):
    """It goes on where enough nodes are left, and one of them can carry the coordinator."""
    command = f"exec python -m holdfast launch {conf} train.py"
    request = make(role(num_replicas=4, min_replicas=2, entrypoint="sh", args=["-c", command]))
    other = make(role(num_replicas=4, min_replicas=2))

    assert outlives_first(request, {"main": nodes}, by_default=by_default) is goes_on
    assert not outlives_first(other, {"main": nodes}, by_default=by_default), "a program of which nothing is known"
