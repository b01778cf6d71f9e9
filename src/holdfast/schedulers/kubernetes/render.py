"""From an app and run options to the objects of a job. Pure.

One Secret remembers the job: the app with its environment, and the run's secret. It owns the others, so the cluster
removes them with it. Further Secrets hold the code that was shipped. What Secrets hold is put in when the job is
submitted; a dry run shows their names only.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import UsageError
from holdfast.launcher.slurm import port_of
from holdfast.schedulers import cluster
from holdfast.schedulers.kubernetes.names import (
    CODE,
    CONTAINER,
    JOB_LABEL,
    PART_LABEL,
    QUEUE_LABEL,
    RECORD,
    REPLICA,
    REPLICA_LABEL,
    ROLE_LABEL,
    labels_of,
    replica_name,
    role_names,
)
from holdfast.schedulers.kubernetes.options import JOBS, JOBSET, Options
from holdfast.schedulers.kubernetes.pod import FOLDER, MARGIN_S, TOLD_TO_END, pod_spec, runs_agent
from holdfast.schedulers.kubernetes.wrapped import first_host, jobset, queued, volcano
from holdfast.schedulers.local.record import LocalRequest
from holdfast.specs.app import AppDef, RetryPolicy, Role

#: The job's own folder in a pod.
JOB_FOLDER = f"{FOLDER}/job"
#: Stands for the working folder of the image.
WORK_FOLDER = "<working folder of the image>"
#: What one Secret may hold is 1 MiB; code that needs more than so many of them does not travel.
CODE_BYTES, CODES_MAX = 900 * 1024, 16


@dataclass
class KubernetesRequest:
    """The native request of the Kubernetes scheduler; it may be changed until it is submitted."""

    job: LocalRequest
    name: str
    namespace: str
    kind: str
    #: The service and the replicas, in the order in which they are created.
    objects: list[dict[str, Any]]
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    #: The Secrets that pods expect code in, and the piece of it that each holds.
    codes: list[str] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list, repr=False)
    #: What pods are to know of the options.
    settings: dict[str, Any] = field(default_factory=dict)
    #: Which cluster: a kubeconfig file and its context, both empty for the default.
    kubeconfig: str = ""
    context: str = ""


def render(
    app: AppDef, job: LocalRequest, name: str, options: Options, pieces: Sequence[bytes] = ()
) -> KubernetesRequest:
    """Make the request for an app whose replicas are planned; `pieces` are those of the code that is shipped."""
    check(app, options)
    names = role_names(app.roles)
    job.cancel_grace_s = max(options.grace_s - MARGIN_S, options.grace_s / 2)
    port = port_of(name)
    first = first_host(options.kind, name, names[app.roles[0].name])
    filled = cluster.fill(job, {cluster.FIRST_HOST: first, cluster.PORT: str(port), cluster.JOB_FOLDER: JOB_FOLDER})
    labels = {**labels_of(job, name), **options.labels}
    request = KubernetesRequest(
        filled,
        name,
        options.namespace,
        options.kind,
        [],
        labels,
        dict(options.annotations),
        code_names(name, sum(map(len, pieces))),
        list(pieces),
        {"health_port": options.health_port} if any(runs_agent(role) for role in app.roles) else {},
    )
    pods = [
        _template(role, names[role.name], number, request, options)
        for role in app.roles
        for number in range(role.num_replicas)
    ]
    if options.kind == JOBS:
        request.objects = [_service(request, port), *(_job(pod, request, app, options) for pod in pods)]
    elif options.kind == JOBSET:
        whole = jobset(_meta(request, name), app, [_job(pod, request, app, options) for pod in pods])
        request.objects = [queued(whole, options.queue) if options.queue else whole]
    else:
        request.objects = [volcano(_meta(request, name), app, pods, options)]
    return request


def check(app: AppDef, options: Options) -> None:
    """Refuse an app that would not run as promised; raises `UsageError`."""
    if not app.roles:
        raise UsageError(f"the app '{app.name}' has no roles: add at least one to `roles`")
    total = sum(role.num_replicas for role in app.roles)
    for role in app.roles:
        alone = role.retry_policy is RetryPolicy.REPLICA or (role.num_replicas == 1 and len(app.roles) == 1)
        if role.max_retries and role.retry_policy is RetryPolicy.ROLE and len(app.roles) > 1:
            raise UsageError(f"the role '{role.name}' wants to be started again alone (retry policy ROLE): use REPLICA")
        if role.max_retries and not alone and options.kind == JOBS:
            raise UsageError(
                f"the role '{role.name}' wants all replicas to be started again when one fails, and there is no master "
                "to do that with core objects: use dist.elastic, where a replica starts again alone, or kind=jobset"
            )
    elastic = all(role.min_replicas is not None for role in app.roles)
    if options.queue and options.kind == JOBS and total > 1 and not elastic:
        raise UsageError(
            "queue with several replicas needs kind=jobset: Kueue would admit the Jobs one by one, and some could wait "
            "for ever; or make the job elastic, as with -j 1:4x8"
        )


def _meta(request: KubernetesRequest, name: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "name": name,
        "namespace": request.namespace,
        "labels": {**request.labels, **(labels or {})},
    }
    if request.annotations:
        meta["annotations"] = dict(request.annotations)
    return meta


def _template(role: Role, role_name: str, number: int, request: KubernetesRequest, options: Options) -> dict[str, Any]:
    """Make the template of a replica's pod, with the labels by which it is found."""
    host = replica_name(request.name, role_name, number)
    labels = {PART_LABEL: REPLICA, ROLE_LABEL: role_name, REPLICA_LABEL: str(number)}
    meta = {key: value for key, value in _meta(request, host, labels).items() if key in ("labels", "annotations")}
    return {"metadata": meta, "spec": pod_spec(role, number, host, request.name, request.codes, options)}


def _service(request: KubernetesRequest, port: int) -> dict[str, Any]:
    """Make the service that gives every pod a name, also before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(request, request.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: request.name, PART_LABEL: REPLICA},
            "ports": [{"name": "rendezvous", "port": port}],
        },
    }


def _job(pod: dict[str, Any], request: KubernetesRequest, app: AppDef, options: Options) -> dict[str, Any]:
    """Make the Job of one replica: its pod comes back where it was lost, and is tried again where it has failed.

    Clusters from 1.26 on are told not to count lost pods among the failures; older ones leave that part out, and do not
    count pods that were deleted anyway.
    """
    labels = pod["metadata"]["labels"]
    role = app.roles[list(role_names(app.roles).values()).index(labels[ROLE_LABEL])]
    retries = role.max_retries if options.kind == JOBS or role.retry_policy is RetryPolicy.REPLICA else 0
    meta = _meta(request, replica_name(request.name, labels[ROLE_LABEL], int(labels[REPLICA_LABEL])), labels)
    if options.queue and options.kind == JOBS:
        meta["labels"][QUEUE_LABEL] = options.queue
    spec: dict[str, Any] = {
        "backoffLimit": retries,
        "completions": 1,
        "parallelism": 1,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "Ignore",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [TOLD_TO_END]},
                },
            ]
        },
        "template": pod,
    }
    if options.ttl_s is not None and options.kind == JOBS:
        spec["ttlSecondsAfterFinished"] = options.ttl_s
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


# -- what is put in when the job is submitted --------------------------------------------------------------------------


def record_secret(request: KubernetesRequest, data: Mapping[str, bytes]) -> dict[str, Any]:
    """Make the Secret that remembers the job."""
    return _secret(_meta(request, request.name, {PART_LABEL: RECORD}), data)


def code_secrets(request: KubernetesRequest) -> list[dict[str, Any]]:
    """Make the Secrets with the code."""
    return [
        _secret(_meta(request, name, {PART_LABEL: CODE}), {f"code-{number:03d}": piece})
        for number, (name, piece) in enumerate(zip(request.codes, request.pieces, strict=True))
    ]


def code_names(name: str, size: int) -> list[str]:
    """Name the Secrets that are needed for code of so many bytes; raises `UsageError` where it is too large."""
    count = -(-size // CODE_BYTES)
    if count > CODES_MAX:
        raise UsageError(
            f"the workspace has {size / 1e6:.1f} MB when it is packed, and what travels in Secrets may have "
            f"{CODES_MAX * CODE_BYTES / 1e6:.0f}: leave more out with .holdfastignore, or build the code into the image"
        )
    return [f"{name}-code-{number}" for number in range(count)]


def owned_by(obj: dict[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that the cluster removes together with its owner."""
    reference = {
        "apiVersion": "v1",
        "kind": "Secret",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}


def _secret(meta: dict[str, Any], data: Mapping[str, bytes]) -> dict[str, Any]:
    encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "type": "Opaque",
        "immutable": True,
        "data": encoded,
    }
