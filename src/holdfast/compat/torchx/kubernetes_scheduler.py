"""TorchX's `kubernetes_scheduler`: its names, around our scheduler.

Jobs are submitted by ours. `app_to_resource` and `role_to_pod` make what TorchX made of an app, a Volcano job and a pod
of the client's own classes, for programs that submit these themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from holdfast.compat.names.torchx import TORCHX_VERSION
from holdfast.compat.torchx.ids import make_unique
from holdfast.compat.torchx.util.strings import normalize_str
from holdfast.errors import UnavailableError
from holdfast.schedulers.kubernetes import scheduler as ours
from holdfast.schedulers.kubernetes.names import label_value
from holdfast.schedulers.kubernetes.options import Options
from holdfast.schedulers.kubernetes.pod import INSTANCE_TYPE as LABEL_INSTANCE_TYPE
from holdfast.specs import AppDef, AppState, RetryPolicy, Role, macros
from holdfast.specs.mounts import DeviceMount, VolumeMount

RESERVED_MILLICPU = 100
RESERVED_MEMMB = 1024
RETRY_POLICIES: Mapping[str, list[Mapping[str, str]]] = {
    RetryPolicy.REPLICA: [],
    RetryPolicy.APPLICATION: [
        {"event": "PodEvicted", "action": "RestartJob"},
        {"event": "PodFailed", "action": "RestartJob"},
    ],
}
#: Volcano's words for the state of a job, and of a pod.
JOB_STATE = {
    "Pending": AppState.PENDING,
    "Aborting": AppState.RUNNING,
    "Aborted": AppState.CANCELLED,
    "Running": AppState.RUNNING,
    "Restarting": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Terminating": AppState.RUNNING,
    "Terminated": AppState.FAILED,
    "Failed": AppState.FAILED,
}
TASK_STATE = {
    **dict.fromkeys(("Pending", "Allocated", "Pipelined", "Binding", "Bound"), AppState.PENDING),
    **dict.fromkeys(("Running", "Releasing"), AppState.RUNNING),
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Unknown": AppState.UNKNOWN,
}
LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_NAME = "torchx.pytorch.org/app-name"
LABEL_ROLE_INDEX = "torchx.pytorch.org/role-index"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
LABEL_KUBE_APP_NAME = "app.kubernetes.io/name"
LABEL_ORGANIZATION = "app.kubernetes.io/managed-by"
LABEL_UNIQUE_NAME = "app.kubernetes.io/instance"
ANNOTATION_ISTIO_SIDECAR = "sidecar.istio.io/inject"


class KubernetesOpts(TypedDict, total=False):
    """The run options of the Kubernetes scheduler that TorchX has too."""

    namespace: str | None
    queue: str
    image_repo: str | None
    service_account: str | None
    priority_class: str | None


@dataclass
class KubernetesJob:
    """TorchX's request: an object to be created, and the images to be pushed before."""

    images_to_push: dict[str, tuple[str, str]]
    resource: dict[str, object]

    def __str__(self) -> str:
        return json.dumps(sanitize_for_serialization(self.resource), indent=2)


class KubernetesScheduler(ours.KubernetesScheduler):
    """Runs jobs on a Kubernetes cluster; it finds its clients itself."""

    def __init__(self, session_name: str, client: object = None, docker_client: object = None) -> None:
        super().__init__(session_name)
        del client, docker_client


def create_scheduler(
    session_name: str, client: object = None, docker_client: object = None, **kwargs: Any
) -> KubernetesScheduler:
    """Make the Kubernetes scheduler for one session."""
    del kwargs
    return KubernetesScheduler(session_name, client, docker_client)


def sanitize_for_serialization(obj: object) -> object:
    """Return an object of the client's classes as plain data."""
    return _client().ApiClient().sanitize_for_serialization(obj)


def pod_labels(app: AppDef, role_idx: int, role: Role, replica_id: int, app_id: str) -> dict[str, str]:
    """Return the labels that TorchX gives a pod."""
    return {
        LABEL_VERSION: label_value(TORCHX_VERSION),
        LABEL_APP_NAME: label_value(app.name),
        LABEL_ROLE_INDEX: str(role_idx),
        LABEL_ROLE_NAME: label_value(role.name),
        LABEL_REPLICA_ID: str(replica_id),
        LABEL_KUBE_APP_NAME: label_value(app.name),
        LABEL_ORGANIZATION: "torchx.pytorch.org",
        LABEL_UNIQUE_NAME: label_value(app_id),
    }


def role_to_pod(name: str, role: Role, service_account: str | None) -> Any:
    """Make a pod that runs a role's command, as the client's `V1Pod`."""
    client = _client()
    volumes, mounts = _volumes(role, client)
    privileged = any(isinstance(mount, DeviceMount) for mount in role.mounts)
    limits, requests = _resources(role)
    container = client.V1Container(
        command=[role.entrypoint, *role.args],
        env=[client.V1EnvVar(name=key, value=value) for key, value in role.env.items()],
        image=role.image,
        name=name,
        ports=[client.V1ContainerPort(name=key, container_port=port) for key, port in role.port_map.items()],
        resources=client.V1ResourceRequirements(limits=limits, requests=requests),
        security_context=client.V1SecurityContext(privileged=privileged),
        volume_mounts=mounts,
    )
    kind = role.resource.capabilities.get(LABEL_INSTANCE_TYPE)
    spec = client.V1PodSpec(
        containers=[container],
        restart_policy="Never",
        service_account_name=service_account,
        volumes=volumes,
        node_selector={LABEL_INSTANCE_TYPE: str(kind)} if kind else {},
    )
    # A sidecar would outlive the program, and the job would never end.
    meta = client.V1ObjectMeta(annotations={ANNOTATION_ISTIO_SIDECAR: "false"}, labels={})
    return client.V1Pod(spec=spec, metadata=meta)


def app_to_resource(
    app: AppDef, queue: str, service_account: str | None, priority_class: str | None = None
) -> dict[str, Any]:
    """Make the Volcano job that TorchX made of an app."""
    tasks: list[dict[str, Any]] = []
    app_id = normalize_str(make_unique(app.name))
    for index, role in enumerate(app.roles):
        for number in range(role.num_replicas):
            name = normalize_str(f"{role.name}-{number}")
            first = normalize_str(f"{app.roles[0].name}-0").upper().replace("-", "_")
            values = macros.Values(img_root="", app_id=app_id, replica_id=str(number), rank0_env=f"VC_{first}_HOSTS")
            filled = values.apply(role)
            if not tasks:
                filled.env["TORCHX_RANK0_HOST"] = "localhost"
            pod = role_to_pod(name, filled, service_account)
            pod.metadata.labels.update(pod_labels(app, index, role, number, app_id))
            task: dict[str, Any] = {"replicas": 1, "name": name, "template": pod}
            if role.max_retries > 0:
                task |= {"maxRetry": role.max_retries, "policies": RETRY_POLICIES.get(role.retry_policy, [])}
            tasks.append(task)
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": queue,
        "tasks": tasks,
        "maxRetry": max((role.max_retries for role in app.roles), default=0),
        "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
    }
    if priority_class is not None:
        spec["priorityClassName"] = priority_class
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": app_id}, "spec": spec}


def _resources(role: Role) -> tuple[dict[str, str], dict[str, str]]:
    """Return what a role is limited to, and what it asks for: less, because a node needs some for itself."""
    resource = role.resource
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    if resource.cpu > 0:
        millis = int(resource.cpu * 1000)
        limits["cpu"], requests["cpu"] = f"{millis}m", f"{max(millis - RESERVED_MILLICPU, 0)}m"
    if resource.memMB > 0:
        limits["memory"], requests["memory"] = f"{resource.memMB}M", f"{max(resource.memMB - RESERVED_MEMMB, 0)}M"
    if resource.gpu > 0:
        limits[Options.gpu_resource] = requests[Options.gpu_resource] = str(math.ceil(resource.gpu))
    for name, count in resource.devices.items():
        limits[name] = str(count)
    return limits, requests


def _volumes(role: Role, client: Any) -> tuple[list[Any], list[Any]]:
    memory = client.V1EmptyDirVolumeSource(medium="Memory")
    volumes = [client.V1Volume(name="dshm", empty_dir=memory)]
    mounts = [client.V1VolumeMount(name="dshm", mount_path="/dev/shm")]
    for number, mount in enumerate(role.mounts):
        name = f"mount-{number}"
        if isinstance(mount, VolumeMount):
            claim = client.V1PersistentVolumeClaimVolumeSource(claim_name=mount.src)
            volumes.append(client.V1Volume(name=name, persistent_volume_claim=claim))
        else:
            path = client.V1HostPathVolumeSource(path=mount.src_path)
            volumes.append(client.V1Volume(name=name, host_path=path))
        read_only = "w" not in mount.permissions if isinstance(mount, DeviceMount) else mount.read_only
        mounts.append(client.V1VolumeMount(name=name, mount_path=mount.dst_path, read_only=read_only))
    return volumes, mounts


def _client() -> Any:
    try:
        from kubernetes import client
    except ImportError:
        raise UnavailableError(
            "TorchX's names for Kubernetes need the package kubernetes: pip install 'holdfast[kubernetes]'"
        ) from None
    return client
