"""A real Ray cluster for the tests that need one; where there is none they are skipped by name."""

import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.schedulers.ray.scheduler import RayScheduler
from tests.schedulers.ray.ray_cluster import RayCluster, why_not


@pytest.fixture(scope="session")
def cluster_of_session():
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="hr-", ignore_cleanup_errors=True) as folder:  # sockets need short names
        cluster = RayCluster(Path(folder))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def cluster(cluster_of_session, monkeypatch):
    """Make the scheduler talk to the cluster of the tests."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", cluster_of_session.address)
    return cluster_of_session


@pytest.fixture
def cfg(cluster):
    """Run options for the cluster of the tests."""
    return {"python": sys.executable}


@pytest.fixture
def make(cluster, tmp_path):
    """Return the function that makes one more object for the same jobs."""
    yield lambda: RayScheduler(f"contract-{tmp_path.name}", tmp_path)
    scheduler = RayScheduler(f"contract-{tmp_path.name}", tmp_path)
    for app in scheduler.list():
        scheduler.delete(app.app_id)
    assert scheduler.list() == []
