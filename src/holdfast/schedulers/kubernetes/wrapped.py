"""The pods of an app as one object of an extension: a JobSet, or a Volcano job. Pure.

Both start all pods together, and start all again where one has failed, which core objects cannot do. Every replica is
one entry of its own, with its number in its command, so that it can also be started again alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.schedulers.kubernetes.names import QUEUE_LABEL, REPLICA_LABEL, ROLE_LABEL, replica_name, role_names
from holdfast.schedulers.kubernetes.options import JOBSET, VOLCANO, Options
from holdfast.specs.app import AppDef, RetryPolicy

#: What each extension adds to the name of the entry to make that of the pod's host.
HOST_ENDINGS = {JOBSET: "-0-0", VOLCANO: "-0"}


def first_host(kind: str, name: str, role: str) -> str:
    """Return the address of the first replica: by the service, which has the name of the job."""
    return f"{replica_name(name, role, 0)}{HOST_ENDINGS.get(kind, '')}.{name}"


def jobset(meta: dict[str, Any], app: AppDef, jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one JobSet of the replicas' Jobs. Kueue admits it as a whole."""
    restarts = max((role.max_retries for role in app.roles if role.retry_policy is not RetryPolicy.REPLICA), default=0)
    entries = []
    for job in jobs:
        labels = job["metadata"]["labels"]
        spec = {**job["spec"], "template": _without_host(job["spec"]["template"])}
        template = {"metadata": {key: job["metadata"][key] for key in ("labels",)}, "spec": spec}
        entries.append({"name": _entry(labels), "replicas": 1, "template": template})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {
            "failurePolicy": {"maxRestarts": restarts},
            "network": {"enableDNSHostnames": True, "subdomain": meta["name"], "publishNotReadyAddresses": True},
            "replicatedJobs": entries,
        },
    }


def volcano(meta: dict[str, Any], app: AppDef, pods: Sequence[Mapping[str, Any]], options: Options) -> dict[str, Any]:
    """Make one Volcano job of the replicas' pods."""
    roles = dict(zip(role_names(app.roles).values(), app.roles, strict=True))
    tasks = []
    for pod in pods:
        labels = pod["metadata"]["labels"]
        role = roles[labels[ROLE_LABEL]]
        alone = role.retry_policy is RetryPolicy.REPLICA
        # A pod that was lost comes back alone; one that has failed as the role's policy says.
        policies = [{"event": "PodEvicted", "action": "RestartTask"}]
        if role.max_retries:
            policies.append({"event": "PodFailed", "action": "RestartTask" if alone else "RestartJob"})
        task = {"name": _entry(labels), "replicas": 1, "template": _without_host(pod), "policies": policies}
        tasks.append({**task, "maxRetry": max(role.max_retries, 1)})
    least = sum(role.num_replicas if role.min_replicas is None else role.min_replicas for role in app.roles)
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": least,
            "maxRetry": max((role.max_retries for role in app.roles), default=0),
            "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
            **({"queue": options.queue} if options.queue else {}),
            "tasks": tasks,
        },
    }


def queued(obj: dict[str, Any], queue: str) -> dict[str, Any]:
    """Return an object that waits in a queue of Kueue."""
    labels = {**obj["metadata"]["labels"], QUEUE_LABEL: queue}
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def _entry(labels: Mapping[str, str]) -> str:
    return f"{labels[ROLE_LABEL]}-{labels[REPLICA_LABEL]}"


def _without_host(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the host's name to the extension, which gives pods names by a service of its own."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("hostname", "subdomain")}
    return {"metadata": pod["metadata"], "spec": spec}
