"""The acceptance run on this machine; a node is what one replica has started."""

import contextlib

import psutil
import pytest

from tests.schedulers import acceptance

pytest.importorskip("numpy")
pytestmark = acceptance.only_in_test_clusters


class LocalShell(acceptance.Shell):
    """A shell whose nodes are replicas: all are on one host."""

    def node(self, handle, replica):
        return f"{handle} {replica}"


def processes(home, node=""):
    """Return the processes of jobs, or of one replica."""
    job, _, number = node.partition(" ")
    found = []
    for each in psutil.process_iter(["environ"]):
        environ = each.info["environ"] or {}
        is_of_it = environ.get("HOLDFAST_REPLICA_ID") == number and environ.get("HOLDFAST_JOB_ID") == job
        if str(home) in str(environ) and (not node or is_of_it):
            found.append(each)
    return found


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def shell(tmp_path, home):
    """Return a shell for jobs on this machine."""
    return LocalShell(tmp_path, "local", ["--detach"], home)


@pytest.fixture
def kill(home):
    """Return the function that kills a replica with all that it has started."""

    def kill_replica(node):
        doomed = processes(home, node)
        assert doomed
        for each in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    return kill_replica


def test_a_killed_replica_costs_no_step(shell, kill):
    acceptance.survives_a_killed_node(shell, kill)


@pytest.mark.parametrize("retries", [2, 0], ids=["comes back", "another takes over"])
def test_a_killed_coordinator_costs_no_step(shell, kill, retries):
    acceptance.survives_a_killed_coordinator(shell, kill, retries=retries)


def test_a_cancel_leaves_nothing(shell, home):
    acceptance.a_cancel_leaves_nothing(shell, lambda: processes(home))


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
