"""The acceptance run on a real Kubernetes of two nodes."""

import re

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
    options = ["-cfg", f"image={image.APP},grace_s=10,lost_after_s=15"]
    made = acceptance.Shell(tmp_path, "kubernetes", options, tmp_path / "home")
    yield made
    for handle in re.findall(r"kubernetes://\S+", made.holdfast("list", "-s", "kubernetes", check=False)):
        made.holdfast("delete", handle)


def pods_of(cluster, handle):
    """Return the pods of a job that are not about to go, by the number of the replica."""
    name = handle.rpartition(":")[2]
    found = [pod for pod in cluster.pods(f"holdfast/job={name}") if "deletionTimestamp" not in pod["metadata"]]
    return {int(pod["metadata"]["labels"]["holdfast/replica"]): pod["metadata"]["name"] for pod in found}


#: Three replicas fit on two nodes with two cores each.
SMALL = (
    "dist.elastic",
    "-j",
    "2:3x1",
    "--cpu",
    "1",
    "--memMB",
    "256",
    "--last-call",
    "30s",
    "--lease",
    "3s",
)
TRAINING = (*SMALL, "--script", "train.py", "0.5")


def test_a_killed_pod_costs_no_step_and_comes_back(shell, cluster):
    handle = shell.submit(*TRAINING)
    shell.wait_lines(handle, r"step [5-9] of \d")
    numbers = [n for n, pod in pods_of(cluster, handle).items() if n]
    victim = pods_of(cluster, handle)[numbers[0]]
    cluster.delete_pod(victim, hard=True)
    wait_for(lambda: pods_of(cluster, handle).get(numbers[0], victim) != victim, "another pod takes its place")
    status = shell.wait_end(handle)
    lines = shell.holdfast("log", handle)

    assert status["state"] == "SUCCEEDED", status
    trained(shell, lines)


@pytest.mark.parametrize("carries", [False, True], ids=["another", "the coordinator's"])
def test_a_killed_node_costs_no_step(shell, cluster, carries):
    # The first replica must find room on the node that is left: without it the others cannot regroup.
    size = ("-j", "2x1") if carries else ()
    handle = shell.submit(*SMALL, *size, "--script", "train.py", "0.5")
    lines = "\n".join(shell.wait_lines(handle, r"step [5-9] of \d"))
    replicas = {each["id"]: each["hostname"] for each in shell.status(handle)["roles"][0]["replicas"]}
    victim = next(host for _, host in sorted(replicas.items()) if host and (host == replicas[0]) is carries)
    cluster.kill_node(victim)
    try:
        shell.wait_lines(handle, "finished 100")
    finally:
        cluster.start_node(victim)
    status = shell.wait_end(handle)
    lines += shell.holdfast("log", handle)

    assert status["state"] == "SUCCEEDED", status
    trained(shell, lines, lines_die=carries)


def test_the_loss_of_the_coordinators_pod_costs_no_step(shell, cluster):
    handle = shell.submit(*TRAINING)
    reader = shell.start("log", "-f", handle)  # from the beginning: the log of a deleted pod goes with it
    lines = []
    try:
        for line in reader.stdout:
            lines.append(line)
            if re.search("step 5 of", line):
                cluster.delete_pod(pods_of(cluster, handle)[0], hard=True)
    finally:
        reader.terminate()
        reader.communicate()
    status = shell.wait_end(handle)

    assert status["state"] == "SUCCEEDED", status
    trained(shell, "".join(lines))


def trained(shell, lines, *, lines_die=False):
    """Check that no step was lost, and that the result is that of a run that nothing disturbed.

    `lines_die` says that lines may be lost with the node that printed them.
    """
    steps = sorted({int(number) for number in re.findall(r"step (\d+) of", lines)})
    finished = re.findall(r"finished (\d+) ([0-9a-f]+)", lines)

    assert lines_die or steps == list(range(100)), "a step was lost"
    assert {each[0] for each in finished} == {"100"}
    assert {each[1] for each in finished} == {acceptance.quiet_weights(shell)}


def test_a_cancel_leaves_nothing(shell, cluster):
    before = {each.pid for each in cluster.container_processes()}

    def left():
        return [each for each in cluster.container_processes() if each.pid not in before and each.is_running()]

    acceptance.a_cancel_leaves_nothing(shell, left)
    assert cluster.pods() == []


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
