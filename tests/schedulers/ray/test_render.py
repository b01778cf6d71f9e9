"""What is submitted to Ray, and what is made of what it says."""

import json

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers import cluster
from holdfast.schedulers.local.logs import parse_line
from holdfast.schedulers.ray import parse
from holdfast.schedulers.ray.parse import JobInfo, describe, lines_of, read_story, record
from holdfast.schedulers.ray.render import (
    JOB_KEY,
    RayRequest,
    address_of,
    bundle,
    check,
    fits,
    in_order,
    least,
    meets_at_driver,
    show,
)
from holdfast.schedulers.ray.scheduler import RayScheduler
from holdfast.specs import AppDef, AppState, BindMount, Resource, Role


def role(name="main", count=1, **more):
    return Role(name, "", entrypoint="prog", num_replicas=count, **more)


def job(*roles):
    made = AppDef("app", list(roles))
    return cluster.plan(made, {}, cluster.Site("ray", "s", "app-x", {each.name: "/code" for each in roles}))


def test_a_bundle_is_what_a_replica_needs_of_a_node():
    assert bundle(role()) == {"CPU": 1.0}
    wanted = bundle(role(resource=Resource(cpu=4, gpu=2, memMB=1024, devices={"tpu": 1})))
    assert wanted == {"CPU": 4.0, "GPU": 2.0, "memory": 1024.0 * 1024 * 1024, "tpu": 1.0}
    assert fits(wanted, {**wanted, "CPU": 8.0})
    assert not fits(wanted, {"CPU": 8.0})


def test_replicas_that_must_run_are_placed_first():
    made = job(role("a", 3, min_replicas=1), role("b", 2))

    assert least(made) == 3
    assert [(made.replicas[n].role, made.replicas[n].id) for n in in_order(made)] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("a", 1),
        ("a", 2),
    ]


def test_agents_of_ours_meet_at_the_driver_and_others_at_the_first_replica():
    ours = role(count=2)
    ours.entrypoint, ours.args = "sh", ["-c", "exec python -m holdfast launch train.py"]

    assert meets_at_driver(job(ours))
    assert not meets_at_driver(job(role(count=2)))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("127.0.0.1:8265", "http://127.0.0.1:8265"), ("https://a/", "https://a"), ("http://b:1", "http://b:1")],
)
def test_an_address_is_a_url(text, wanted):
    assert address_of(text) == wanted


def test_mounts_are_refused():
    with pytest.raises(UsageError, match="nothing is mounted"):
        check(AppDef("app", [role(mounts=[BindMount("/a", "/b")])]))


def test_what_ray_keeps_of_a_job_is_enough_to_describe_it():
    made = RayRequest(job(role(count=2)))
    info = JobInfo("app-x", "RUNNING", metadata=made.metadata())
    found = describe(info, made.job, read_story([]))

    assert json.loads(made.metadata()[JOB_KEY])["app_id"] == "app-x"
    assert (found.name, found.roles[0].num_replicas) == ("app", 2)
    assert "holdfast.schedulers.ray.driver" in show(made)


def test_the_clusters_address_is_an_option_or_from_the_environment(monkeypatch, tmp_path):
    scheduler = RayScheduler("s", tmp_path)
    app = AppDef("app", [role()])
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)

    assert scheduler.submit_dryrun(app, {}).request.address == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")
    assert scheduler.submit_dryrun(app, {}).request.address == "http://head:8265"
    assert scheduler.submit_dryrun(app, {"dashboard_address": "a:1"}).request.address == "http://a:1"


# -- what the driver writes --------------------------------------------------------------------------------------------

REPLICA = {"role": "main", "id": 0, "state": "RUNNING", "started_at": 5.0}
RUNNING = record(progress={"state": "RUNNING", "replicas": [REPLICA]}, hosts={"main/0": "10.0.0.1"})
FAILED = record(
    progress={"state": "FAILED", "msg": "main/0 failed", "replicas": [{**REPLICA, "state": "FAILED", "exit_code": 3}]}
)


def story_of(status, *lines, message=""):
    return describe(JobInfo("app-x", status, message), job(role()), read_story(lines))


def test_a_replica_is_as_the_driver_last_said():
    found = story_of("RUNNING", "noise of a library", RUNNING)
    (replica,) = found.roles_statuses[0].replicas

    assert (found.state, replica.state, replica.hostname) == (AppState.RUNNING, AppState.RUNNING, "10.0.0.1")
    assert found.started_at == 5.0


@pytest.mark.parametrize(
    ("status", "lines", "wanted", "said"),
    [
        ("RUNNING", [record(waiting="it needs 2 nodes")], "PENDING", "it needs 2 nodes"),
        ("PENDING", [], "PENDING", "Job has not started"),
        ("FAILED", [RUNNING, FAILED], "FAILED", "main/0 failed"),
        ("FAILED", [RUNNING], "FAILED", "its driver was lost"),
        ("FAILED", ["No module named 'holdfast'"], "FAILED", "-cfg pip=holdfast"),
        ("STOPPED", [RUNNING], "CANCELLED", "cancelled"),
        ("SUCCEEDED", [RUNNING], "SUCCEEDED", ""),
        ("NEW", [], "UNKNOWN", ""),
    ],
)
def test_a_job_is_as_ray_and_its_driver_say(status, lines, wanted, said):
    found = story_of(status, *lines, message="Job has not started")

    assert found.state.name == wanted
    assert said in found.msg


def test_a_replica_of_a_job_that_was_stopped_does_not_run_on():
    (replica,) = story_of("STOPPED", RUNNING).roles_statuses[0].replicas

    assert replica.state is AppState.CANCELLED


def test_each_replica_has_its_own_lines():
    written = [
        record(of=["main", 0], line="1.5 o hello"),
        "noise",
        record(of=["main", 1], line="1.6 e other"),
        parse.MARK + '{"of": ["main"',
        record(of=["main", 0], line="1.7 e ü"),
    ]

    assert [parse_line(line) for line in lines_of(written, "main", 0)] == [(1.5, "o", "hello"), (1.7, "e", "ü")]
