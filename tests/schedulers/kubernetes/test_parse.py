"""From objects of Kubernetes to a status."""

import json

import pytest

from holdfast.schedulers import cluster
from holdfast.schedulers.kubernetes import parse
from holdfast.schedulers.kubernetes.last_word import BYTES_MAX, decode, encode
from holdfast.schedulers.kubernetes.names import CANCELLED_ANNOTATION
from holdfast.schedulers.kubernetes.node import exit_code
from holdfast.schedulers.local.record import JobRecord, ReplicaRecord
from holdfast.specs import AppDef, AppState, Role

START = "2026-11-16T10:00:00Z"


def request_of(replicas=2, least=None, name="main"):
    app = AppDef("a", [Role(name, "img", num_replicas=replicas, min_replicas=least)])
    return cluster.plan(app, {}, cluster.Site("kubernetes", "s", "ns:a-x", {name: "/"}))


def meta(number=0, name="obj", at=START, **more):
    labels = {"holdfast/role": "main", "holdfast/replica": str(number)}
    return {"name": name, "labels": labels, "creationTimestamp": at, **more}


def job(number=0, condition="", **more):
    conditions = [{"type": condition, "status": "True", **more}] if condition else []
    return {"metadata": meta(number, f"job-{number}"), "status": {"conditions": conditions}}


def pod(number=0, phase="Running", name="pod", at=START, state=None, meta_more=None, **status):
    containers = [{"name": "main", "state": state or {"running": {"startedAt": START}}}]
    return {
        "metadata": meta(number, name, at, **(meta_more or {})),
        "spec": {"nodeName": "node-a"},
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def ended(number=0, code=0, message="", reason="", phase=None, **more):
    terminated = {"exitCode": code, "message": message, "reason": reason, "finishedAt": "2026-11-16T10:01:00Z"}
    return pod(number, phase or ("Failed" if code else "Succeeded"), state={"terminated": terminated}, **more)


def record(cancelled=False):
    notes = {CANCELLED_ANNOTATION: START} if cancelled else {}
    return {"metadata": {"name": "a-x", "creationTimestamp": START, "annotations": notes}}


def look(jobs, pods, cancelled=False, job_request=None, **more):
    return parse.describe("ns:a-x", parse.Seen(job_request or request_of(), record(cancelled), jobs, pods, **more))


def states(found):
    return [each.state.name for each in found.roles_statuses[0].replicas]


def test_a_job_whose_pods_run_is_running():
    found = look([job(0), job(1)], [pod(0), pod(1)])

    assert found.state is AppState.RUNNING
    assert states(found) == ["RUNNING", "RUNNING"]
    assert found.roles_statuses[0].replicas[0].hostname == "node-a"
    assert found.submitted_at == found.started_at == 1794823200.0


def test_a_job_has_succeeded_when_all_jobs_are_complete():
    found = look([job(0, "Complete"), job(1, "Complete")], [ended(0), ended(1)])

    assert found.state is AppState.SUCCEEDED
    assert states(found) == ["SUCCEEDED", "SUCCEEDED"]
    assert found.ended_at == 1794823260.0


def test_a_pod_that_ended_well_is_not_yet_a_job_that_did():
    assert look([job(0), job(1)], [ended(0), ended(1)]).state is AppState.RUNNING


def test_the_last_word_tells_why():
    error = {"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "File x"}}}
    word = ReplicaRecord(
        role="main",
        id=1,
        state="FAILED",
        exit_code=1,
        cause="rank 1: ValueError: no",
        error=json.dumps(error),
        restarts=0,
    )
    found = look([job(0, "Failed"), job(1, "Failed")], [ended(0, 1), ended(1, 1, encode(word), "Error")])

    assert found.state is AppState.FAILED
    replica = found.roles_statuses[0].replicas[1]
    assert (replica.cause, replica.exit_code) == ("rank 1: ValueError: no", 1)
    assert json.loads(found.structured_error_msg) == error


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (ended(0, 137, "", "OOMKilled"), "OOMKilled (it used more memory than it had asked for)"),
        (ended(0, 3, "one\nlast\n", "Error"), "exit code 3; its last line was: last"),
        (ended(0, 1, reason="ContainerCannotRun"), "ContainerCannotRun (its container could not start)"),
        (
            pod(0, "Failed", reason="Evicted", message="The node was low on resource: memory.", state={}),
            "Evicted (its node needed the room): The node was low on resource: memory",
        ),
        (pod(0, "Failed", state={}), "its pod was lost"),
    ],
)
def test_without_a_last_word_kubernetes_is_quoted(found, cause):
    assert look([job(0, "Failed")], [found], job_request=request_of(1)).roles_statuses[0].replicas[0].cause == cause


def test_what_the_runtime_knows_of_memory_is_added_to_the_last_word():
    word = encode(ReplicaRecord(role="main", id=0, state="FAILED", exit_code=-9, cause="killed by SIGKILL"))
    found = look([job(0, "Failed")], [ended(0, 137, word, "OOMKilled")], job_request=request_of(1))

    cause = found.roles_statuses[0].replicas[0].cause
    assert cause == "OOMKilled (it used more memory than it had asked for); killed by SIGKILL"


def test_a_job_that_failed_without_a_pod_says_why():
    found = look([job(0, "Failed", reason="DeadlineExceeded", message="too long")], [], job_request=request_of(1))

    assert found.msg == "main/0 failed: DeadlineExceeded: too long"


def unschedulable(message):
    return pod(
        0,
        "Pending",
        state={},
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
            "Unschedulable: 0/2 nodes have nvidia.com/gpu (2 Insufficient nvidia.com/gpu)",
        ),
        (
            "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No victims.",
            "Unschedulable: 0/2 nodes have cpu (2 Insufficient cpu)",
        ),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had taint {a: b}.",
            "Unschedulable: 0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had taint {a: b}",
        ),
    ],
)
def test_a_pod_that_fits_nowhere_says_what_is_lacking(message, told):
    found = look([job(0)], [unschedulable(message)], job_request=request_of(1))

    assert found.state is AppState.PENDING
    assert found.msg == told


def test_a_pod_that_cannot_get_its_image_says_so():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}
    found = look([job(0), job(1)], [pod(0, "Pending", state=waiting), pod(1)])

    assert found.state is AppState.RUNNING
    assert found.msg == 'ImagePullBackOff (its image cannot be pulled): Back-off pulling image "x"'
    creating = pod(0, "Pending", state={"waiting": {"reason": "ContainerCreating"}})
    assert look([job(0)], [creating], job_request=request_of(1)).msg == ""


def test_a_job_without_pods_says_what_is_against_them():
    event = {"type": "Warning", "message": "forbidden: exceeded quota", "involvedObject": {"name": "job-0"}}
    found = look([job(0)], [], events=[event], job_request=request_of(1))

    assert (found.state, found.msg) == (AppState.PENDING, "forbidden: exceeded quota")


def test_a_pod_that_came_in_place_of_another_counts_as_a_restart():
    first = ended(0, 1, "boom", at="2026-11-16T09:59:00Z", name="z")
    found = look([job(0)], [pod(0, name="a"), first], job_request=request_of(1))

    assert (found.state, found.num_restarts) == (AppState.RUNNING, 1)
    waits = look([job(0)], [first], job_request=request_of(1))
    assert waits.state is AppState.PENDING
    assert waits.msg == "it starts again after: exit code 1; its last line was: boom"


def test_a_pod_that_is_being_ended_is_not_the_one_that_counts():
    going = pod(0, at="2026-11-16T10:00:09Z", meta_more={"deletionTimestamp": START})
    found = look([job(0)], [going, pod(0, "Pending", state={})], job_request=request_of(1))

    assert states(found) == ["PENDING"]
    assert look([job(0)], [going], job_request=request_of(1)).state is AppState.RUNNING


def test_a_lost_replica_does_not_fail_an_elastic_job():
    jobs = [job(0, "Complete"), job(1, "Complete"), job(2, "Failed")]
    found = look(jobs, [ended(0), ended(1), ended(2, 137)], job_request=request_of(3, 2))

    assert found.state is AppState.SUCCEEDED
    assert "the job went on without it" in found.msg
    running = look([job(0), job(1), job(2, "Failed")], [pod(0), pod(1), ended(2, 137)], job_request=request_of(3, 2))
    assert running.state is AppState.RUNNING
    assert running.msg == "main/2 failed: exit code 137"


@pytest.mark.parametrize(
    "late",
    [
        [pod(2, "Pending", state={})],
        [pod(2, state={"running": {"startedAt": "2026-11-16T10:01:30Z"}})],
        [ended(2, 1)],
        [],
    ],
)
def test_an_elastic_job_does_not_wait_for_a_replica_that_comes_too_late(late):
    seen = parse.Seen(
        request_of(3, 2), record(), [job(0, "Complete"), job(1, "Complete"), job(2)], [ended(0), ended(1), *late]
    )
    found = parse.describe("ns:a-x", seen)

    assert found.state is AppState.SUCCEEDED
    assert states(found) == ["SUCCEEDED", "SUCCEEDED", "CANCELLED"]
    assert parse.leftovers(seen, parse.statuses(seen)) == ["job-2"]
    rigid = look(seen.jobs, seen.pods, job_request=request_of(3))
    assert rigid.state in (AppState.PENDING, AppState.RUNNING)


def test_a_replica_that_is_about_to_finish_is_waited_for():
    found = look(
        [job(0, "Complete"), job(1, "Complete"), job(2)], [ended(0), ended(1), pod(2)], job_request=request_of(3, 2)
    )

    assert found.state is AppState.RUNNING


def test_a_node_that_does_not_answer_is_told():
    conditions = [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]
    found = look([job(0)], [pod(0, conditions=conditions)], job_request=request_of(1))

    assert found.roles_statuses[0].replicas[0].cause == "its node node-a does not answer"


def test_a_cancelled_job_is_cancelled_when_its_pods_are_gone():
    assert look([], [pod(0)], cancelled=True).state is AppState.RUNNING
    found = look([], [], cancelled=True)

    assert found.state is AppState.CANCELLED
    assert states(found) == ["CANCELLED", "CANCELLED"]


def test_a_job_whose_objects_were_removed_is_unknown():
    assert look([], []).state is AppState.UNKNOWN


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"conditions": [{"type": "Completed", "status": "True"}]}, AppState.SUCCEEDED),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, AppState.FAILED),
        ({"state": {"phase": "Completed"}}, AppState.SUCCEEDED),
        ({"state": {"phase": "Failed"}}, AppState.FAILED),
        ({"state": {"phase": "Running"}}, AppState.RUNNING),
    ],
)
def test_extensions_say_how_the_whole_ended(status, state):
    pods = [ended(0), pod(1) if state is AppState.RUNNING else ended(1, int(state is AppState.FAILED))]
    found = look([], pods, whole={"status": status}, is_wrapped=True)

    assert found.state is state


def test_a_last_word_fits_however_long_it_is():
    trace = "\n".join(f'  File "/code/module_{n}.py", line {n}, in function_{n * n}' for n in range(4000))
    error = {"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": trace, "rank": "3"}}}
    word = ReplicaRecord(role="r", id=0, exit_code=1, cause="c" * 5000, error=json.dumps(error))
    text = encode(word)
    back = decode(text)

    assert len(text) <= BYTES_MAX
    kept = json.loads(back.error)["message"]
    assert kept["message"] == "ValueError: bad"
    assert kept["extraInfo"]["rank"] == "3"
    assert kept["extraInfo"]["py_callstack"].startswith('  File "/code/module_0.py"')
    assert kept["extraInfo"]["py_callstack"].endswith(f"function_{3999 * 3999}")


def test_a_short_last_word_is_whole():
    word = ReplicaRecord(role="r", id=0, exit_code=1, cause="because", error='{"a": 1}', started_at=1.5)

    assert decode(encode(word)) == word


@pytest.mark.parametrize(
    "text", ["", "oh no", "holdfast:1:{", "holdfast:z:~~~", "holdfast:z:abc", 'holdfast:1:{"id": "x"}']
)
def test_other_last_words_are_not_taken_for_ours(text):
    assert decode(text) is None


@pytest.mark.parametrize(
    ("state", "code", "told"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 3, 3),
        ("FAILED", -9, 137),
        ("FAILED", -15, 1),
        ("FAILED", None, 1),
        ("CANCELLED", 0, 143),
    ],
)
def test_the_exit_code_tells_the_job_whether_it_was_a_failure(state, code, told):
    assert exit_code(JobRecord(state=state, replicas=[ReplicaRecord(role="r", id=0, exit_code=code)])) == told


def test_times():
    assert parse.seconds("1970-01-02T00:00:01Z") == 86401.0
    assert parse.seconds("2024-02-29T12:00:00.5Z") == 1709208000.5
    assert parse.seconds("soon") is None
