"""The client where there is no cluster."""

import json
import logging
import socket

import pytest

pytest.importorskip("kubernetes")

from holdfast.errors import UnavailableError
from holdfast.schedulers.kubernetes.client import KubernetesClient


def kubeconfig(path, port):
    """Write a kubeconfig for a server at a port of this machine."""
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
        "users": [{"name": "test", "user": {"token": "test"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.write_text(json.dumps(whole))
    return str(path)


def test_a_cluster_that_is_not_there_is_told_in_one_sentence(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        port = free.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"cannot reach the Kubernetes cluster at https://127.0.0.1:{port}"):
            KubernetesClient(kubeconfig(tmp_path / "config", port)).find("Pod", "default")

    assert caplog.records == [], "nothing is said but the error itself"
