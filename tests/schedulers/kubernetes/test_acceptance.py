"""The acceptance run on a real Kubernetes of two nodes."""

import re

import psutil
import pytest

from tests.schedulers import acceptance
from tests.schedulers.kubernetes import image
from tests.schedulers.kubernetes.kubernetes_cluster import wait_for

pytest.importorskip("numpy")
pytestmark = acceptance.only_in_test_clusters


@pytest.fixture
def shell(cluster, tmp_path):
    """Return a shell for jobs on this cluster; what it has left there is removed."""
    (tmp_path / "home").mkdir()
    options = ["-cfg", f"image={image.APP},grace_s=10"]
    made = acceptance.Shell(tmp_path, "kubernetes", options, tmp_path / "home")
    yield made
    for handle in re.findall(r"kubernetes://\S+", made.holdfast("list", "-s", "kubernetes", check=False)):
        made.holdfast("delete", handle)


def pods_of(cluster, handle):
    """Return the pods of a job that are not about to go, by the number of the replica."""
    name = handle.rpartition(":")[2]
    found = [pod for pod in cluster.pods(f"holdfast/job={name}") if "deletionTimestamp" not in pod["metadata"]]
    return {int(pod["metadata"]["labels"]["holdfast/replica"]): pod["metadata"]["name"] for pod in found}


def test_a_killed_pod_costs_no_step_and_comes_back(shell, cluster):
    handle = shell.submit("-j", "2:3x1", "--last-call", "30s", "--lease", "3s", "train.py", "0.4")
    shell.wait_lines(handle, "step 5 of 3")
    victim = pods_of(cluster, handle)[2]
    cluster.kill_pod(victim)
    shell.wait_lines(handle, r"step \d+ of 2")
    wait_for(lambda: pods_of(cluster, handle).get(2, victim) != victim, "another pod takes its place")
    status = shell.wait_end(handle)
    lines = shell.holdfast("log", handle)

    assert status["state"] == "SUCCEEDED", status
    trained(shell, lines)


def trained(shell, lines):
    """Check that no step was lost, and that the result is that of a run that nothing disturbed."""
    steps = sorted({int(number) for number in re.findall(r"step (\d+) of", lines)})
    finished = re.findall(r"finished (\d+) ([0-9a-f]+)", lines)

    assert steps == list(range(100)), "a step was lost"
    assert {each[0] for each in finished} == {"100"}
    assert {each[1] for each in finished} == {acceptance.quiet_weights(shell)}


def test_a_cancel_leaves_nothing(shell, cluster):
    before = {each.pid for each in cluster.container_processes()}

    def left():
        return [each for each in cluster.container_processes() if each.pid not in before and each.is_running()]

    acceptance.a_cancel_leaves_nothing(shell, left)
    assert psutil.pid_exists(1)
    assert cluster.pods() == []


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
