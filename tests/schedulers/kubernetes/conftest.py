"""A real Kubernetes for the tests that need one; it is there in `make test-clusters` alone.

HOLDFAST_TEST_KUBECONFIG names the kubeconfig of the cluster that `kubernetes_cluster.py` has started. No other one is
ever used, least of all the user's own.
"""

import os
from pathlib import Path

import pytest

from holdfast.schedulers.kubernetes.scheduler import KubernetesScheduler
from tests.schedulers.kubernetes.kubernetes_cluster import KubernetesCluster


@pytest.fixture
def cluster(monkeypatch):
    """Make clients talk to the cluster of the tests."""
    named = os.environ.get("HOLDFAST_TEST_KUBECONFIG")
    if not named:
        pytest.skip("there is no Kubernetes of the tests here: make test-clusters starts one")
    pytest.importorskip("kubernetes")
    monkeypatch.setenv("KUBECONFIG", named)
    return KubernetesCluster(Path(named).parent)


@pytest.fixture
def make(cluster, tmp_path):
    """Return the function that makes one more object for the same jobs."""
    session = tmp_path.name[:40]
    made = []

    def make_one():
        made.append(KubernetesScheduler(session, tmp_path))
        return made[-1]

    yield make_one
    scheduler = make_one()
    for app in scheduler.list():
        scheduler.delete(app.app_id)
    for each in made:
        each.close()
