"""The acceptance run on a real Slurm of four nodes."""

import psutil
import pytest

from tests.schedulers import acceptance

pytest.importorskip("numpy")
pytestmark = acceptance.only_in_test_clusters


@pytest.fixture
def shell(cluster, tmp_path):
    """Return a shell for jobs on this cluster; nodes that were killed are started again."""
    yield acceptance.Shell(tmp_path, "slurm", ["-cfg", "lost_after_s=15"], tmp_path / "home")
    cluster.revive()


def test_a_killed_node_costs_no_step(shell, cluster):
    acceptance.survives_a_killed_node(shell, cluster.kill_node)


def test_a_killed_coordinator_costs_no_step(shell, cluster):
    acceptance.survives_a_killed_coordinator(shell, cluster.kill_node, retries=0)


def test_a_cancel_leaves_nothing(shell, tmp_path):
    def left():
        home = str(tmp_path / "home")
        return [each.pid for each in psutil.process_iter(["environ"]) if home in str(each.info["environ"])]

    acceptance.a_cancel_leaves_nothing(shell, left)


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
