"""A real Slurm for the tests that need one; where there is none they are skipped by name."""

import pytest

from holdfast.schedulers.slurm.scheduler import SlurmScheduler
from tests.schedulers.slurm.slurm_cluster import SlurmCluster, why_not


@pytest.fixture(scope="session")
def cluster_of_session(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(cluster_of_session, monkeypatch):
    """Make Slurm's commands talk to the cluster of the tests."""
    for name, value in cluster_of_session.environ.items():
        monkeypatch.setenv(name, value)
    return cluster_of_session


@pytest.fixture
def make(cluster, tmp_path):
    """Return the function that makes one more object for the same jobs."""
    yield lambda: SlurmScheduler("contract", tmp_path)
    scheduler = SlurmScheduler("contract", tmp_path)
    for app in scheduler.list():
        scheduler.delete(app.app_id)
    assert list(tmp_path.glob("slurm/contract/[0-9]*")) + list(tmp_path.glob("slurm/contract/.jobs/*")) == []
