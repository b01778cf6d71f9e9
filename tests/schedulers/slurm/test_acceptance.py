"""The acceptance run on a real Slurm of four nodes."""

import psutil
import pytest

from tests.schedulers import acceptance
from tests.schedulers.slurm.slurm_cluster import wait_for

pytest.importorskip("numpy")
pytestmark = acceptance.only_in_test_clusters


@pytest.fixture
def shell(cluster, tmp_path):
    """Return a shell for jobs on this cluster."""
    return acceptance.Shell(tmp_path, "slurm", [], tmp_path / "home")


def test_a_killed_node_costs_no_step(shell, cluster):
    acceptance.survives_a_killed_node(shell, cluster.kill_node)
    for name in ("n1", "n2", "n3", "n4"):
        if not psutil.pid_exists(int((cluster.folder / f"slurmd.{name}.pid").read_text())):
            cluster.start_node(name)
    wait_for(lambda: cluster.sinfo().count("idle") == 4, "the killed node is back")


def test_a_cancel_leaves_nothing(shell, tmp_path):
    def left():
        home = str(tmp_path / "home")
        return [each.pid for each in psutil.process_iter(["environ"]) if home in str(each.info["environ"])]

    acceptance.a_cancel_leaves_nothing(shell, left)


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
