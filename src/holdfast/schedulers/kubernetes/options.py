"""The run options of Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.errors import UsageError
from holdfast.specs.cfg import CfgVal

#: What an app is made of: core objects alone, or one object of an extension that the cluster must have.
JOBS, JOBSET, VOLCANO = "jobs", "jobset", "volcano"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: Name, type, default and help of each option.
OPTIONS: tuple[tuple[str, Any, CfgVal, str], ...] = (
    ("namespace", str, None, "namespace; by default that of the kubeconfig's context"),
    ("context", str, None, "context of the kubeconfig; by default its current one"),
    ("kubeconfig", str, None, "kubeconfig file; by default $KUBECONFIG, ~/.kube/config, or the pod's own account"),
    ("image", str, None, "image of roles that name none; it must have Python 3.11+ and Holdfast"),
    ("kind", Literal["jobs", "jobset", "volcano"], JOBS, "core objects alone, one JobSet, or one Volcano job"),
    ("queue", str, None, "queue of Kueue, or of Volcano with kind=volcano"),
    ("service_account", str, None, "service account of the pods; without one they get no token"),
    ("priority_class", str, None, "priority class of the pods"),
    ("node_selector", dict[str, str], None, "labels that nodes must have, as in pool:gpu"),
    ("tolerations", list[str], None, "taints that are tolerated, as in gpu, dedicated=train or spot:NoSchedule"),
    ("affinity", str, None, "affinity of the pods, as JSON or YAML, or the name of a file with it"),
    ("spread", Literal["preferred", "required", "none"], "preferred", "put replicas on different nodes"),
    ("image_pull_secrets", list[str], None, "Secrets with which images are pulled"),
    ("image_pull_policy", Literal["Always", "IfNotPresent", "Never"], None, "when images are pulled"),
    ("shm_mb", int, None, "size of /dev/shm in MB; by default half of the node's memory"),
    ("gpu_resource", str, "nvidia.com/gpu", "what GPUs are called on this cluster"),
    ("limits", bool, True, "limit pods to the CPU and memory that they ask for; False: ask only"),
    ("labels", dict[str, str], None, "further labels of all objects"),
    ("annotations", dict[str, str], None, "further annotations of all objects"),
    ("pod_patch", str, None, "changes to every pod, as JSON or YAML, or the name of a file with them"),
    ("python", str, "python3", "Python in the image"),
    ("host_network", bool, False, "use the network of the nodes"),
    ("health_port", int, 8090, "port of the agents' health server, for liveness and readiness; 0 for none"),
    ("grace_s", float, 30.0, "seconds between SIGTERM and SIGKILL when a pod is ended"),
    ("lost_after_s", int, 60, "seconds after which the pod of a node that does not answer is replaced"),
    ("ttl_s", int, None, "seconds after which the cluster removes an ended Job, from Kubernetes 1.21 on"),
)


@dataclass(frozen=True)
class Options:
    """The options of one run, checked."""

    namespace: str
    kind: str = JOBS
    image: str = ""
    queue: str = ""
    service_account: str = ""
    priority_class: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    spread: str = "preferred"
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str = ""
    shm_mb: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    limits: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_patch: Mapping[str, Any] = field(default_factory=dict)
    python: str = "python3"
    host_network: bool = False
    health_port: int = 8090
    grace_s: float = 30.0
    lost_after_s: int = 60
    ttl_s: int | None = None


def check_options(cfg: Mapping[str, CfgVal], namespace: str, documents: Mapping[str, Mapping[str, Any]]) -> Options:
    """Read the options; `documents` are those that hold objects, as they were read. Raises `UsageError`."""
    known = {name: value for name, value in cfg.items() if name in Options.__dataclass_fields__ and value is not None}
    given: dict[str, Any] = {**known, "namespace": namespace, **documents}
    given["tolerations"] = tuple(toleration(each) for each in given.get("tolerations") or ())
    given["image_pull_secrets"] = tuple(given.get("image_pull_secrets") or ())
    options = Options(**given)
    if options.kind not in (JOBS, JOBSET, VOLCANO):
        raise UsageError(f"kind={options.kind} must be one of {JOBS}, {JOBSET} and {VOLCANO}")
    if options.grace_s < 1:
        raise UsageError(f"grace_s={options.grace_s:g} must be at least 1: a replica needs time to leave")
    if not 0 <= options.health_port <= 65535:
        raise UsageError(f"health_port={options.health_port} must be a port, or 0 for none")
    return options


def toleration(text: str) -> dict[str, Any]:
    """Read `KEY`, `KEY=VALUE`, `KEY:EFFECT` or `KEY=VALUE:EFFECT`; `*` tolerates everything."""
    if text == "*":
        return {"operator": "Exists"}
    head, colon, effect = text.rpartition(":")
    if not colon:
        head, effect = text, ""
    if effect and effect not in EFFECTS:
        raise UsageError(f"tolerations={text}: the effect '{effect}' must be one of {', '.join(EFFECTS)}")
    key, equals, value = head.partition("=")
    if not key:
        raise UsageError(f"tolerations={text} must be KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT")
    found: dict[str, Any] = {"key": key, "operator": "Equal" if equals else "Exists"}
    if equals:
        found["value"] = value
    if effect:
        found["effect"] = effect
    return found
