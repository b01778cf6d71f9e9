"""The pod of a replica. Pure.

It runs `holdfast.schedulers.kubernetes.node`, which finds everything about the app in a Secret: so neither the app's
environment nor the run's secret stands in the pod, where everyone who may read pods could read it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import UsageError
from holdfast.schedulers.kubernetes.names import CONTAINER, JOB_LABEL
from holdfast.schedulers.kubernetes.options import Options
from holdfast.specs.app import Role
from holdfast.specs.mounts import BindMount, DeviceMount, VolumeMount

#: Where a pod finds what travels with the job, and where it puts what it makes of it.
SECRETS, FOLDER = "/run/holdfast/job", "/holdfast"
#: What of the grace time is left for the program itself, when the replica's time is over.
MARGIN_S = 3.0
#: The exit code of a pod that was told to end, as by `kubectl delete pod` or a drained node.
TOLD_TO_END = 143
#: A capability that is the type of a node.
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def pod_spec(role: Role, number: int, host: str, job: str, codes: Sequence[str], options: Options) -> dict[str, Any]:
    """Make the pod of a replica; `host` is its name, `codes` the Secrets with the code that was shipped."""
    program = [options.python, "-P", "-m", "holdfast.schedulers.kubernetes.node", role.name, str(number)]
    volumes, mounts = _volumes(role, job, codes, options)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image_of(role, options),
        "command": program,
        "resources": resources(role, options),
        "terminationMessagePath": "/dev/termination-log",
        # What a program that could not leave a last word has printed last.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if options.image_pull_policy:
        container["imagePullPolicy"] = options.image_pull_policy
    if any(isinstance(mount, DeviceMount) for mount in role.mounts):
        container["securityContext"] = {"privileged": True}
    if options.health_port and runs_agent(role):
        container |= _probes(options)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",  # the Job starts another pod, and this one can be looked at
        "hostname": host,
        "subdomain": job,
        "terminationGracePeriodSeconds": math.ceil(options.grace_s),
        "automountServiceAccountToken": bool(options.service_account),
        "enableServiceLinks": False,
        "tolerations": [*options.tolerations, *_while_silent(options)],
        "containers": [container],
        "volumes": volumes,
    }
    spec |= _placement(role, job, options)
    merged = merge(spec, options.pod_patch)
    assert isinstance(merged, dict)
    return merged


def image_of(role: Role, options: Options) -> str:
    """Return the image of a role; raises `UsageError` where none is named."""
    image = role.image or options.image
    if not image or image.startswith(("/", "./", "~", "file://")) or image == ".":
        raise UsageError(
            f"the role '{role.name}' names no image: give --image, or -cfg image=NAME; it must have Python 3.11+ and "
            "Holdfast (docs/SCHEDULERS.md has a recipe)"
        )
    return image


def runs_agent(role: Role) -> bool:
    """Whether a role runs an agent of ours, which has a health server unless its own flags say otherwise."""
    words = " ".join([role.entrypoint, *role.args])
    return "-m holdfast launch" in words and "--health-port" not in words


def resources(role: Role, options: Options) -> dict[str, Any]:
    """Return what a replica asks for, and what it is limited to."""
    resource = role.resource
    asked: dict[str, str] = {}
    if resource.cpu > 0:
        asked["cpu"] = f"{round(resource.cpu * 1000)}m"
    if resource.memMB > 0:
        asked["memory"] = f"{resource.memMB}M"
    # Devices are always limited to what is asked for: Kubernetes wants it so.
    devices = {name: str(count) for name, count in resource.devices.items()}
    if resource.gpu > 0:
        devices[options.gpu_resource] = str(math.ceil(resource.gpu))
    found = {"requests": {**asked, **devices}, "limits": {**(asked if options.limits else {}), **devices}}
    return {kind: values for kind, values in found.items() if values}


def _volumes(
    role: Role, job: str, codes: Sequence[str], options: Options
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    memory: dict[str, Any] = {"medium": "Memory"}
    if options.shm_mb:
        memory["sizeLimit"] = f"{options.shm_mb}M"
    sources = [{"secret": {"name": name}} for name in (job, *codes)]
    volumes: list[dict[str, Any]] = [
        {"name": "holdfast-job", "projected": {"sources": sources}},
        {"name": "holdfast", "emptyDir": {}},
        {"name": "shm", "emptyDir": memory},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "holdfast-job", "mountPath": SECRETS, "readOnly": True},
        {"name": "holdfast", "mountPath": FOLDER},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    for number, mount in enumerate(role.mounts):
        name = f"mount-{number}"
        match mount:
            case BindMount(source, target, read_only):
                volumes.append({"name": name, "hostPath": {"path": source}})
            case VolumeMount(claim, target, read_only):
                volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
            case DeviceMount(source, target, permissions):
                volumes.append({"name": name, "hostPath": {"path": source}})
                read_only = "w" not in permissions
        mounts.append({"name": name, "mountPath": target, **({"readOnly": True} if read_only else {})})
    return volumes, mounts


def _placement(role: Role, job: str, options: Options) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kind = role.resource.capabilities.get(INSTANCE_TYPE)
    selector = {**({INSTANCE_TYPE: str(kind)} if kind else {}), **options.node_selector}
    if selector:
        found["nodeSelector"] = selector
    if options.spread != "none":
        found["affinity"] = {"podAntiAffinity": _apart(job, required=options.spread == "required")}
    if options.affinity:
        found["affinity"] = merge(found.get("affinity", {}), options.affinity)
    if options.service_account:
        found["serviceAccountName"] = options.service_account
    if options.priority_class:
        found["priorityClassName"] = options.priority_class
    if options.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.host_network:
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return found


def _apart(job: str, *, required: bool) -> dict[str, Any]:
    """Put the replicas of a job on different nodes: where that is possible, or always."""
    term = {"labelSelector": {"matchLabels": {JOB_LABEL: job}}, "topologyKey": "kubernetes.io/hostname"}
    if required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


def _while_silent(options: Options) -> list[dict[str, Any]]:
    """Replace a pod soon after its node fell silent; five minutes are the default of Kubernetes."""
    seconds = {"effect": "NoExecute", "operator": "Exists", "tolerationSeconds": options.lost_after_s}
    return [{"key": taint, **seconds} for taint in _TAINTS]


def _probes(options: Options) -> dict[str, Any]:
    def get(path: str, **more: int) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": options.health_port}, "timeoutSeconds": 5, **more}

    return {
        "ports": [{"name": "health", "containerPort": options.health_port}],
        # The agent says itself that it hangs, after a time of its own; so one refusal is not yet the end.
        "livenessProbe": get("/healthz", periodSeconds=10, failureThreshold=6),
        "readinessProbe": get("/readyz", periodSeconds=10),
        # Code may have to be unpacked and imported before the agent answers.
        "startupProbe": get("/healthz", periodSeconds=5, failureThreshold=120),
    }


def merge(value: Any, patch: Any) -> Any:
    """Change objects: mappings are merged, lists of named things by their names, null removes, the rest replaces."""
    if isinstance(value, Mapping) and isinstance(patch, Mapping):
        merged = {key: copy.deepcopy(each) for key, each in value.items() if key not in patch or patch[key] is not None}
        for key, change in patch.items():
            if change is not None:
                merged[key] = merge(merged[key], change) if key in merged else copy.deepcopy(change)
        return merged
    if _are_named(value) and _are_named(patch):
        changes = {each["name"]: each for each in patch}
        merged_list = [merge(each, changes.pop(each["name"], {})) for each in value]
        return [*merged_list, *(copy.deepcopy(each) for each in changes.values())]
    return copy.deepcopy(patch)


def _are_named(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) and "name" in each for each in value)
    )
