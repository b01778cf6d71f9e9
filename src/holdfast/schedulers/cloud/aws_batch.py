"""From an app to the requests of AWS Batch, and from its answers to a status. Pure.

An app of one replica is a job of one container; any other is a multi-node parallel job with one node range a role.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.schedulers.cloud import common
from holdfast.schedulers.cloud.common import JobInfo, Option, Site
from holdfast.specs.app import AppDef, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.mounts import BindMount, DeviceMount, VolumeMount
from holdfast.specs.states import AppState

#: Node ranges that a multi-node job may have, attempts that a job may have, and letters of its name.
ROLES_MAX, ATTEMPTS_MAX, NAME_CHARS_MAX = 5, 10, 128
STATES = {
    "SUBMITTED": AppState.SUBMITTED,
    **dict.fromkeys(("PENDING", "RUNNABLE", "STARTING"), AppState.PENDING),
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
OPTIONS = (
    Option("queue", str, "queue of AWS Batch that the job goes to", required=True),
    Option("secret", str, "ARN of the secret that replicas share, in Secrets Manager or Parameter Store"),
    common.INSECURE,
    Option("user", str, "user in the containers"),
    Option("privileged", bool, "give the containers all rights on the host", False),
    Option("share_id", str, "share identifier, for a queue with fair shares"),
    Option("priority", int, "priority within the share", 0),
    Option("job_role_arn", str, "role that the app has"),
    Option("execution_role_arn", str, "role that the agent of AWS has, to pull images and read secrets"),
    Option("timeout_s", int, "how long an attempt may take"),
)


def render(app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
    """Make the requests: the job definition to register, and the job to submit, whose definition is then known."""
    common.check(app, "AWS Batch", roles_max=ROLES_MAX)
    common.check_options(cfg, "AWS Batch", OPTIONS)
    queue = str(cfg["queue"])
    more = common.need_secret(app, cfg, "name one of Secrets Manager with -cfg secret=ARN")
    attempts = common.retries(app) + 1  # AWS counts the first start too
    if attempts > ATTEMPTS_MAX:
        raise UsageError(f"AWS Batch starts a job {ATTEMPTS_MAX} times at most: max_retries may be {ATTEMPTS_MAX - 1}")
    name = common.safe_name(site.app_id, NAME_CHARS_MAX)
    tags = common.tags(app, site)
    definition: dict[str, Any] = {
        "jobDefinitionName": name,
        "retryStrategy": {"attempts": attempts},
        "tags": tags,
        "propagateTags": True,
    }
    if cfg.get("timeout_s"):
        definition["timeout"] = {"attemptDurationSeconds": int(common.number_of(cfg.get("timeout_s"), 0))}
    total = sum(role.num_replicas for role in app.roles)
    if total == 1:
        definition |= {"type": "container", "containerProperties": _container(app.roles[0], cfg, site, more, 0)}
    else:
        definition |= {"type": "multinode", "nodeProperties": _nodes(app, cfg, site, more)}
    job: dict[str, Any] = {"jobName": name, "jobQueue": queue, "jobDefinition": name, "tags": tags}
    if cfg.get("share_id"):
        job["shareIdentifier"] = str(cfg["share_id"])
        job["schedulingPriorityOverride"] = int(common.number_of(cfg.get("priority"), 0))
    return {"register_job_definition": definition, "submit_job": job}


def _nodes(app: AppDef, cfg: Mapping[str, CfgVal], site: Site, more: Mapping[str, str]) -> dict[str, Any]:
    ranges, offset = [], 0
    for role in app.roles:
        last = offset + role.num_replicas - 1
        target = f"{offset}:{last}" if last > offset else str(offset)
        ranges.append({"targetNodes": target, "container": _container(role, cfg, site, more, offset)})
        offset = last + 1
    return {"numNodes": offset, "mainNode": 0, "nodeRangeProperties": ranges}


def _container(
    role: Role, cfg: Mapping[str, CfgVal], site: Site, more: Mapping[str, str], offset: int
) -> dict[str, Any]:
    resource = role.resource
    if resource.cpu <= 0 or resource.memMB <= 0:
        raise UsageError(f"the role '{role.name}' must say how many CPUs and how much memory it needs, for AWS Batch")
    wanted = {"VCPU": math.ceil(resource.cpu), "MEMORY": resource.memMB, "GPU": math.ceil(max(resource.gpu, 0))}
    # On the main node AWS does not name its address.
    here = "$(hostname -i | cut -d' ' -f1)"
    words = common.command(
        role,
        site,
        number=f"$(( ${{AWS_BATCH_JOB_NODE_INDEX:-0}} - {offset} ))",
        first=f'"${{AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS:-{here}}}"',
    )
    env = {**common.environment(role, site), **more}
    found: dict[str, Any] = {
        "image": common.need_image(role),
        "command": words,
        "environment": [{"name": name, "value": value} for name, value in sorted(env.items())],
        "resourceRequirements": [{"type": kind, "value": str(count)} for kind, count in wanted.items() if count],
        "privileged": bool(cfg.get("privileged")),
        "linuxParameters": {"sharedMemorySize": resource.memMB},
        "logConfiguration": {"logDriver": "awslogs"},
    }
    for key, option in (("user", "user"), ("jobRoleArn", "job_role_arn"), ("executionRoleArn", "execution_role_arn")):
        if cfg.get(option):
            found[key] = str(cfg[option])
    if cfg.get("secret"):
        found["secrets"] = [{"name": "HOLDFAST_SECRET", "valueFrom": str(cfg["secret"])}]
    return _with_mounts(found, role)


def _with_mounts(found: dict[str, Any], role: Role) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    rights = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
    for number, mount in enumerate(role.mounts):
        match mount:
            case BindMount(source, target, read_only):
                volumes.append({"name": f"mount_{number}", "host": {"sourcePath": source}})
                points.append({"containerPath": target, "readOnly": read_only, "sourceVolume": f"mount_{number}"})
            case VolumeMount(source, target, read_only):
                volumes.append({"name": f"mount_{number}", "efsVolumeConfiguration": {"fileSystemId": source}})
                points.append({"containerPath": target, "readOnly": read_only, "sourceVolume": f"mount_{number}"})
            case DeviceMount(source, target, permissions):
                allowed = [rights[letter] for letter in permissions]
                devices.append({"hostPath": source, "containerPath": target, "permissions": allowed})
    if devices:
        found["linuxParameters"]["devices"] = devices
    return {**found, "volumes": volumes, "mountPoints": points}


def parse(detail: Mapping[str, Any]) -> JobInfo:
    """Read a job out of an answer of DescribeJobs."""
    state = STATES.get(str(detail.get("status")), AppState.UNKNOWN)
    if state is AppState.FAILED and (detail.get("isTerminated") or detail.get("isCancelled")):
        state = AppState.CANCELLED
    tags = detail.get("tags") or {}
    container = detail.get("container") or {}
    msg = " ".join(filter(None, [str(detail.get("statusReason") or ""), str(container.get("reason") or "")]))
    replicas = {}
    roles = _roles(detail)
    if container and len(roles) == 1 and roles[0].num_replicas == 1:
        code = container.get("exitCode")
        replicas[roles[0].name, 0] = (state, code if isinstance(code, int) else None, "")
    return JobInfo(
        id=str(detail["jobId"]),
        name=str(tags.get(common.NAME_TAG) or detail.get("jobName") or ""),
        state=state,
        msg=msg,
        session=str(tags.get(common.SESSION_TAG) or ""),
        submitted=_seconds(detail.get("createdAt")),
        started=_seconds(detail.get("startedAt")),
        ended=_seconds(detail.get("stoppedAt")),
        roles=roles,
        replicas=replicas,
        restarts=max(len(detail.get("attempts") or ()) - 1, 0),
    )


def _roles(detail: Mapping[str, Any]) -> list[Role]:
    ranges = (detail.get("nodeProperties") or {}).get("nodeRangeProperties")
    if not ranges:
        container = detail.get("container") or {}
        return [_role(container, 1)] if container else []
    found = []
    for each in ranges:
        first, _, last = str(each["targetNodes"]).partition(":")
        found.append(_role(each.get("container") or {}, int(last or first) - int(first or 0) + 1))
    return found


def _role(container: Mapping[str, Any], count: int) -> Role:
    env = {each["name"]: each.get("value", "") for each in container.get("environment") or ()}
    words = [str(word) for word in container.get("command") or ()]
    return Role(
        str(env.get("HOLDFAST_ROLE") or "main"),
        str(container.get("image") or ""),
        entrypoint=words[0] if words else "",
        args=words[1:],
        env=env,
        num_replicas=count,
    )


def _seconds(milliseconds: object) -> float | None:
    return float(milliseconds) / 1000 if isinstance(milliseconds, int | float) else None
