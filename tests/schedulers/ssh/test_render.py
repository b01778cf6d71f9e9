"""Which host runs what, what it gets, and what is made of its answers."""

import ast
import json
import shlex

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers import cluster
from holdfast.schedulers.ssh import boot
from holdfast.schedulers.ssh.hosts import Placed, check_hosts, parse_hosts_file, place
from holdfast.schedulers.ssh.parse import Reply, describe, parse_reply
from holdfast.schedulers.ssh.render import Access, SshRequest, check, for_host, show, used
from holdfast.specs import AppDef, AppState, BindMount, ReplicaStatus, RetryPolicy, Role


def app(*roles):
    return AppDef("app", list(roles))


def role(name="main", count=1, **more):
    return Role(name, "", entrypoint="prog", num_replicas=count, **more)


def request(*roles, hosts=("a", "b", "c")):
    made = app(*roles)
    placed = place(made, hosts)
    site = cluster.Site("ssh", "s", "app-x", {each.name: "/code" for each in roles})
    return SshRequest(used(cluster.plan(made, {}, site), placed), placed, Access())


def hosts_of(placed):
    return [(each.role, each.number, each.host) for each in placed]


def test_every_replica_gets_a_host_of_its_own():
    assert hosts_of(place(app(role(count=2), role("b")), ["a", "b", "c", "d"])) == [
        ("main", 0, "a"),
        ("main", 1, "b"),
        ("b", 0, "c"),
    ]


@pytest.mark.parametrize(("hosts", "got"), [("abc", 3), ("ab", 2), ("abcdefg", 4)])
def test_an_elastic_role_takes_the_hosts_that_there_are(hosts, got):
    assert len(place(app(role(count=4, min_replicas=2)), list(hosts))) == got


def test_too_few_hosts_are_refused():
    with pytest.raises(UsageError, match="needs 3 hosts, one for each replica, and there are 2: a, b"):
        place(app(role(count=3)), ["a", "b"])


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        (["-oProxyCommand=x"], "is not a host"),
        (["a b"], "is not a host"),
        (["a", "a"], "twice"),
        ([" "], "name the hosts"),
    ],
)
def test_hosts_that_ssh_would_misread_are_refused(hosts, said):
    with pytest.raises(UsageError, match=said):
        check_hosts(hosts)


def test_a_file_of_hosts_may_hold_more():
    assert parse_hosts_file("# lab\nuser@a slots=8\n\n  b\n#c\n") == ["user@a", "b"]


def test_a_host_gets_its_own_replica_and_id():
    part = for_host(request(role(count=2, max_retries=2, retry_policy=RetryPolicy.REPLICA)), 1)

    assert part.app_id == "app-x.1"
    assert [each.id for each in part.replicas] == [1]
    assert part.role_plans[0].max_retries == 2


def test_an_app_of_one_replica_may_be_tried_again_whatever_its_policy():
    assert for_host(request(role(max_retries=3)), 0).role_plans[0].max_retries == 3


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ([role(count=2, max_retries=1)], "use dist.elastic"),
        ([role(mounts=[BindMount("/a", "/b")])], "nothing is mounted"),
    ],
)
def test_what_hosts_without_a_master_cannot_do_is_refused(roles, said):
    with pytest.raises(UsageError, match=said):
        check(app(*roles))


def test_a_request_can_be_read_again_and_shown():
    made = request(role(count=2))

    assert SshRequest.from_json(json.loads(json.dumps(made.to_json())), made.job) == made
    assert "  b runs main/1" in show(made)


def test_the_line_that_ssh_runs_needs_no_care_in_any_shell():
    assert not set(boot.LINE) & set("'\"$`\\!")
    assert shlex.split(f"python3 -c '{boot.LINE}'") == ["python3", "-c", boot.LINE]


def test_the_program_for_hosts_is_python_that_older_versions_can_read():
    length, _, rest = boot.opening({"verb": "probe", "text": "ü\n"}).partition(b"\n")
    program, order = rest[: int(length)], rest[int(length) :]

    ast.parse(program.decode(), feature_version=(3, 7))
    assert json.loads(order) == {"verb": "probe", "text": "ü\n"}
    assert order.count(b"\n") == 1


# -- a status ----------------------------------------------------------------------------------------------------------


def reply(state, **more):
    return (
        Reply(ReplicaStatus(0, AppState[state], "main", **more)) if state != "SILENT" else Reply(unreachable="no route")
    )


@pytest.mark.parametrize(
    ("states", "least", "cancelled", "wanted", "said"),
    [
        (["SUCCEEDED", "SUCCEEDED"], None, False, "SUCCEEDED", ""),
        (["SUCCEEDED", "RUNNING"], None, False, "RUNNING", ""),
        (["PENDING", "PENDING"], None, False, "PENDING", ""),
        (["SUCCEEDED", "FAILED"], None, False, "FAILED", "failed"),
        (["FAILED", "RUNNING"], None, False, "RUNNING", "failed"),
        (["RUNNING", "SILENT"], None, False, "RUNNING", "no route"),
        (["SUCCEEDED", "SILENT"], None, False, "UNKNOWN", "no route"),
        (["SUCCEEDED", "SILENT"], 1, False, "SUCCEEDED", "went on without it"),
        (["FAILED", "SILENT"], 1, False, "FAILED", "no route"),
        (["CANCELLED", "CANCELLED"], None, True, "CANCELLED", "cancelled"),
        (["CANCELLED", "SILENT"], None, True, "CANCELLED", "no route"),
        (["CANCELLED", "RUNNING"], None, True, "RUNNING", "being cancelled"),
        (["SUCCEEDED", "SUCCEEDED"], None, True, "SUCCEEDED", ""),
        (["SILENT", "SILENT"], None, False, "UNKNOWN", "no route"),
    ],
)
def test_a_job_is_as_its_replicas_are(states, least, cancelled, wanted, said):
    made = request(role(count=2, min_replicas=least), hosts=("a", "b"))
    found = describe(made, [reply(state) for state in states], 1.0, cancelled=cancelled)

    assert found.state.name == wanted
    assert said in found.msg
    assert found.submitted_at == 1.0


def test_a_job_that_a_host_has_lost_is_failed():
    made = request(role())
    (replica,) = describe(made, [Reply()], None, cancelled=False).roles_statuses[0].replicas

    assert (replica.state, replica.hostname) == (AppState.FAILED, "a")
    assert "not on the host any more" in replica.cause


def test_an_answer_of_a_newer_host_is_read_too():
    data = {"replica": {"id": 0, "state": "RUNNING", "role": "main", "hostname": "x", "new": 1}}

    assert parse_reply(Placed("main", 0, "a"), data) == Reply(ReplicaStatus(0, AppState.RUNNING, "main", "a"))
