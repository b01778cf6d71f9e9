"""The acceptance run on a real Ray cluster of a head and three nodes."""

import sys

import pytest

from holdfast.schedulers.ray.scheduler import RayScheduler
from tests.schedulers import acceptance

pytest.importorskip("numpy")
pytestmark = [
    acceptance.only_in_test_clusters,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def shell(cluster, tmp_path):
    """Return a shell for jobs on this cluster."""
    options = ["-cfg", f'python={sys.executable},dashboard_address="{cluster.address}"']
    home = tmp_path / "home"
    yield acceptance.Shell(tmp_path, "ray", options, home)
    scheduler = RayScheduler("holdfast", home)
    for app in scheduler.list():
        scheduler.delete(app.app_id)


def test_a_killed_node_costs_no_step(shell, cluster):
    try:
        acceptance.survives_a_killed_node(shell, cluster.kill_node)
    finally:
        cluster.revive()


def test_the_node_of_the_first_replica_costs_no_step(shell, cluster):
    try:
        acceptance.survives_a_killed_coordinator(shell, cluster.kill_node, comes_back=False, lines_die=True)
    finally:
        cluster.revive()


def test_a_cancel_leaves_nothing(shell, cluster):
    acceptance.a_cancel_leaves_nothing(shell, cluster.job_processes)


def test_a_failure_shows_its_traceback(shell):
    acceptance.a_failure_shows_its_traceback(shell)
