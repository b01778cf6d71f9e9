"""What jobs do on a real Kubernetes, beyond the contract."""

import os

import psutil
import pytest

from holdfast.errors import UsageError
from holdfast.schedulers.kubernetes.scheduler import KubernetesScheduler
from holdfast.specs import AppState, Resource, RetryPolicy
from tests.schedulers.acceptance import only_in_test_clusters
from tests.schedulers.job_bench import JobBench
from tests.schedulers.kubernetes import image
from tests.schedulers.kubernetes.kubernetes_cluster import wait_for

pytestmark = only_in_test_clusters


@pytest.fixture
def bench(cluster, tmp_path):
    scheduler = KubernetesScheduler(tmp_path.name[:40], tmp_path / "home")
    made = JobBench(scheduler, cfg={"grace_s": 10.0}, image=image.APP, resource=Resource(0.2, 0, 64))
    yield made
    made.clear()
    scheduler.close()


def pod_names(cluster, app_id):
    return [pod["metadata"]["name"] for pod in cluster.pods(f"holdfast/job={app_id.partition(':')[2]}")]


def test_several_roles_run_side_by_side_and_find_the_first(bench):
    script = (
        "echo $$HOLDFAST_ROLE ${replica_id} of ${app_id}; getent hosts $$TORCHX_RANK0_HOST >/dev/null && echo found"
    )
    app_id = bench.submit_app(
        [bench.role(f"{script}; sleep 15"), bench.role(f"sleep 5; {script}; exit 3", name="Other_role")]
    )
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert [role.replicas[0].state.name for role in found.roles_statuses] == ["SUCCEEDED", "FAILED"]
    assert bench.lines(app_id, "Other_role") == [f"Other_role 0 of {app_id}", "found"]
    assert found.roles_statuses[1].replicas[0].exit_code == 3
    assert found.roles_statuses[0].replicas[0].hostname in ("node-a", "node-b")


def test_a_replica_that_fails_is_tried_again_as_often_as_it_may(bench):
    app_id = bench.submit("echo try; exit 7", max_retries=1, retry_policy=RetryPolicy.REPLICA)
    found = bench.wait(app_id)

    assert found.state is AppState.FAILED
    assert found.num_restarts == 1
    assert found.roles_statuses[0].replicas[0].exit_code == 7
    assert bench.lines(app_id) == ["try"] * 2


def test_a_deleted_pod_is_told_to_leave_and_comes_back_uncounted(bench, cluster):
    script = "trap 'echo left; exit 0' TERM; echo up; while :; do sleep 0.2; done"
    app_id = bench.submit(script)
    bench.wait_line(app_id, "up")
    (first,) = pod_names(cluster, app_id)
    lines = bench.scheduler.log_iter(app_id, "main", should_tail=True)
    follower = (line for line in lines if line != "Terminated")  # what the shell says of its sleep
    assert next(follower) == "up"
    cluster.delete_pod(first)

    assert next(follower) == "left", "it had time to leave"
    assert next(follower) == "up", "another pod goes on, and so does the log"
    assert [name for name in pod_names(cluster, app_id) if name != first]
    assert bench.scheduler.describe(app_id).state is AppState.RUNNING


def test_a_job_that_fits_nowhere_says_why_and_can_be_cancelled(bench):
    app_id = bench.submit("echo never", resource=Resource(0.1, 1, 64))
    found = bench.wait(app_id, lambda found: found.msg)

    assert found.state is AppState.PENDING
    assert found.msg == "Unschedulable: 0/2 nodes have nvidia.com/gpu (2 Insufficient nvidia.com/gpu)"
    bench.scheduler.cancel(app_id)
    assert bench.wait(app_id).state is AppState.CANCELLED


def test_an_image_that_is_not_there_is_told(bench):
    app_id = bench.submit("echo never", {"image_pull_policy": "Never"}, image="localhost/no-such:1")
    found = bench.wait(app_id, lambda found: found.msg)

    assert found.state is AppState.PENDING
    assert found.msg.startswith("ErrImageNeverPull (its image is not on the node, and may not be pulled)")


def test_a_program_that_is_not_there_is_told(bench):
    found = bench.wait(bench.submit("", entrypoint="no-such-program"))

    assert found.state is AppState.FAILED
    assert "no-such-program" in found.msg


def test_a_python_without_holdfast_is_told(bench):
    found = bench.wait(bench.submit("echo never", {"python": "/no/such/python"}))

    assert found.state is AppState.FAILED
    assert "/no/such/python" in found.msg


def test_too_much_memory_is_told(bench):
    script = "python3 -c 'held = bytearray(400_000_000); print(len(held))'"
    found = bench.wait(bench.submit(script, resource=Resource(0.2, 0, 100)))

    assert found.state is AppState.FAILED
    assert "memory" in found.msg


def test_what_kubernetes_refuses_is_told_in_its_words_and_nothing_is_left(bench, cluster):
    with pytest.raises(UsageError, match=r"Kubernetes refused the Secret: .*no-such-namespace"):
        bench.submit("echo", {"namespace": "no-such-namespace"})
    with pytest.raises(UsageError, match=r"Kubernetes refused the Job: .*shareProcessNamespace"):
        bench.submit("echo", {"pod_patch": '{"shareProcessNamespace": "x"}'})
    with pytest.raises(UsageError, match="this cluster has no JobSet"):
        bench.submit("echo", {"kind": "jobset"})
    assert bench.scheduler.list() == []
    wait_for(
        lambda: not cluster.items("/api/v1/namespaces/default/services?labelSelector=holdfast%2Fjob"), "all is gone"
    )


def test_options_reach_the_pods(bench, cluster):
    cfg = {
        "labels": {"team": "a"},
        "annotations": {"note": "b"},
        "node_selector": {"kubernetes.io/os": "linux"},
        "tolerations": ["spot:NoSchedule"],
        "shm_mb": 64,
        "pod_patch": '{"containers": [{"name": "main", "securityContext": {"runAsUser": 1000, "runAsGroup": 1000}}]}',
    }
    app_id = bench.submit("id -u; df -m /dev/shm | tail -1 | cut -d' ' -f1; cat $$HOLDFAST_SECRET_FILE | wc -c", cfg)
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED, found
    lines = bench.lines(app_id)
    assert lines[:2] == ["1000", "tmpfs"], "the job runs as another user than root, too"
    assert int(lines[2]) >= 16
    (pod,) = cluster.pods("team=a")
    assert pod["metadata"]["annotations"]["note"] == "b"


def test_the_secret_and_the_environment_are_only_in_secrets(bench, cluster, monkeypatch):
    monkeypatch.setenv("HOLDFAST_SECRET", "a-secret-of-32-letters-or-more-for-a-test")
    app_id = bench.submit(
        "cat $$HOLDFAST_SECRET_FILE; stat -L -c %a $$HOLDFAST_SECRET_FILE; echo token $$TOKEN; sleep 600",
        env={"TOKEN": "the-token-of-the-app"},
    )
    bench.wait_line(app_id, "token the-token-of-the-app")
    shown = [cluster.get(f"/api/v1/namespaces/default/{kind}") for kind in ("pods", "services", "events")]
    shown.append(cluster.get("/apis/batch/v1/namespaces/default/jobs"))
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    environs = [str(each.info["environ"]) for each in psutil.process_iter(["environ"]) if each.pid != os.getpid()]

    assert bench.lines(app_id)[:2] == ["a-secret-of-32-letters-or-more-for-a-test", "600"]
    assert not any("a-secret-of-32" in text for text in [*shown, *commands, *environs])
    assert not any("the-token-of-the-app" in text for text in [*shown, *commands])


def test_a_workspace_travels(bench, tmp_path):
    code = tmp_path / "code"
    (code / "deep").mkdir(parents=True)
    (code / "deep" / "hello.py").write_text("print('hello from', __file__.rsplit('/', 2)[1])")
    (code / "large.bin").write_bytes(os.urandom(2_000_000))
    app_id = bench.submit("python deep/hello.py; wc -c <large.bin; pwd", workspace=str(code))

    assert bench.wait(app_id).state is AppState.SUCCEEDED
    assert bench.lines(app_id) == ["hello from deep", "2000000", "/holdfast/job/workspace/main"]


def test_a_job_of_a_context_of_its_own_is_found_again(bench, cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    app_id = bench.submit("echo hello", {"kubeconfig": str(cluster.kubeconfig), "context": "test"})
    other = KubernetesScheduler(bench.scheduler.session_name, tmp_path / "home")
    try:
        assert other.exists(app_id)
        assert bench.wait(app_id).state is AppState.SUCCEEDED
        other.delete(app_id)
        assert not list(tmp_path.glob("home/kubernetes/*/*"))
    finally:
        other.close()
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
