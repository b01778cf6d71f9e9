"""From an app to a job of Google Batch, and from its answers to a status. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.schedulers.cloud import common
from holdfast.schedulers.cloud.common import JobInfo, Option, Site
from holdfast.specs.app import AppDef, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.mounts import BindMount
from holdfast.specs.states import AppState

NAME_CHARS_MAX, RETRIES_MAX = 63, 10
STATES = {
    **dict.fromkeys(("STATE_UNSPECIFIED",), AppState.UNKNOWN),
    **dict.fromkeys(("QUEUED", "SCHEDULED"), AppState.PENDING),
    **dict.fromkeys(("RUNNING", "CANCELLATION_IN_PROGRESS", "DELETION_IN_PROGRESS"), AppState.RUNNING),
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
    "CANCELLED": AppState.CANCELLED,
}
#: Machines with their GPUs built in, by how many those are.
GPU_MACHINES = {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 4: "a2-highgpu-4g", 8: "a2-highgpu-8g", 16: "a2-megagpu-16g"}
OPTIONS = (
    Option("project", str, "project that the job belongs to", required=True),
    Option("location", str, "region of the job", "us-central1"),
    Option("machine_type", str, "type of machines; by default one with as many GPUs as the app asks for"),
    Option("secret", str, "secret that replicas share, as in projects/P/secrets/S/versions/latest"),
    common.INSECURE,
    Option("service_account", str, "mail address of the account that the machines have"),
    Option("timeout_s", int, "how long an attempt may take"),
)


def render(app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
    """Make the request of projects.locations.jobs.create."""
    common.check(app, "Google Batch", roles_max=1)
    common.check_options(cfg, "Google Batch", OPTIONS)
    if common.retries(app) > RETRIES_MAX:
        raise UsageError(f"Google Batch starts a job again {RETRIES_MAX} times at most")
    role = app.roles[0]
    more = common.need_secret(
        app, cfg, "name one of Secret Manager with -cfg secret=projects/P/secrets/S/versions/latest"
    )
    variables: dict[str, Any] = {"variables": {**common.environment(role, site), **more}}
    if cfg.get("secret"):
        variables["secretVariables"] = {"HOLDFAST_SECRET": str(cfg["secret"])}
    spec: dict[str, Any] = {
        "runnables": [{"container": _container(role, site)}],
        "environment": variables,
        "maxRetryCount": common.retries(app),
    }
    resource = role.resource
    compute = {"cpuMilli": str(math.ceil(resource.cpu * 1000))} if resource.cpu > 0 else {}
    compute |= {"memoryMib": str(resource.memMB)} if resource.memMB > 0 else {}
    if compute:
        spec["computeResource"] = compute
    if cfg.get("timeout_s"):
        spec["maxRunDuration"] = f"{int(common.number_of(cfg.get('timeout_s'), 0))}s"
    group = {
        "taskCount": str(role.num_replicas),
        "parallelism": str(role.num_replicas),
        "taskCountPerNode": "1",
        "requireHostsFile": True,
        "taskSpec": spec,
    }
    job: dict[str, Any] = {
        "taskGroups": [group],
        "labels": {key: common.safe_name(value, 63, lower=True) for key, value in common.tags(app, site).items()},
        "logsPolicy": {"destination": "CLOUD_LOGGING"},
    }
    if policy := _allocation(role, cfg):
        job["allocationPolicy"] = policy
    parent = f"projects/{cfg['project']}/locations/{cfg.get('location') or 'us-central1'}"
    return {"parent": parent, "jobId": common.safe_name(site.app_id, NAME_CHARS_MAX, lower=True), "body": job}


def _container(role: Role, site: Site) -> dict[str, Any]:
    words = common.command(
        role, site, number="${BATCH_TASK_INDEX:-0}", first='"${BATCH_MAIN_NODE_HOSTNAME:-localhost}"'
    )
    shm = f" --shm-size={role.resource.memMB}m" if role.resource.memMB > 0 else ""
    volumes = []
    for mount in role.mounts:
        if not isinstance(mount, BindMount):
            raise UsageError(f"the role '{role.name}' mounts a {type(mount).__name__}: Google Batch binds folders only")
        volumes.append(f"{mount.src_path}:{mount.dst_path}:{'ro' if mount.read_only else 'rw'}")
    found: dict[str, Any] = {
        "imageUri": common.need_image(role),
        "entrypoint": words[0],
        "commands": words[1:],
        "options": f"--network=host{shm}",
    }
    return {**found, "volumes": volumes} if volumes else found


def _allocation(role: Role, cfg: Mapping[str, CfgVal]) -> dict[str, Any]:
    gpus = math.ceil(max(role.resource.gpu, 0))
    machine = str(cfg.get("machine_type") or "")
    if gpus and not machine:
        if gpus not in GPU_MACHINES:
            known = ", ".join(map(str, GPU_MACHINES))
            raise UsageError(f"no machine of Google has {gpus} GPUs by default ({known}): name one with machine_type")
        machine = GPU_MACHINES[gpus]
    found: dict[str, Any] = {}
    if machine:
        found["instances"] = [{"policy": {"machineType": machine}, "installGpuDrivers": bool(gpus)}]
    if cfg.get("service_account"):
        found["serviceAccount"] = {"email": str(cfg["service_account"])}
    return found


def split_id(app_id: str) -> str | None:
    """Return the full name of a job, whose id is PROJECT:LOCATION:NAME; None for what is no such id."""
    parts = app_id.split(":")
    if len(parts) != 3 or not all(parts):
        return None
    return f"projects/{parts[0]}/locations/{parts[1]}/jobs/{parts[2]}"


def make_id(name: str) -> str:
    """Return the id of a job by its full name."""
    words = name.split("/")
    return f"{words[1]}:{words[3]}:{words[5]}"


def parse(job: Mapping[str, Any]) -> JobInfo:
    """Read a job out of an answer."""
    status, labels = job.get("status") or {}, job.get("labels") or {}
    group = (job.get("taskGroups") or [{}])[0]
    spec = group.get("taskSpec") or {}
    container = ((spec.get("runnables") or [{}])[0]).get("container") or {}
    env = dict((spec.get("environment") or {}).get("variables") or {})
    role = Role(
        str(env.get("HOLDFAST_ROLE") or "main"),
        str(container.get("imageUri") or ""),
        entrypoint=str(container.get("entrypoint") or ""),
        args=[str(word) for word in container.get("commands") or ()],
        env=env,
        num_replicas=int(group.get("taskCount") or 1),
    )
    events = status.get("statusEvents") or []
    return JobInfo(
        id=make_id(str(job["name"])),
        name=str(labels.get(common.NAME_TAG) or job["name"].rsplit("/", 1)[-1]),
        state=STATES.get(str(status.get("state")), AppState.UNKNOWN),
        msg=str(events[-1].get("description") or "") if events else "",
        session=str(labels.get(common.SESSION_TAG) or ""),
        roles=[role],
        url=str(job.get("uid") or ""),
    )
