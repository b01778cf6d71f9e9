"""From an app and run options to a job of Ray, and to the bundles that are placed on its nodes. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import UsageError
from holdfast.schedulers.local.record import LocalRequest
from holdfast.schedulers.local.render import show_parts
from holdfast.specs.app import AppDef, Role

#: What a job of ours is known by, in Ray's metadata.
SESSION_KEY, NAME_KEY, JOB_KEY = "holdfast_session", "holdfast_name", "holdfast_job"
#: The words by which an agent of ours is started: such apps meet at the driver.
LAUNCH = "-m holdfast launch"
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
MIB = 1024 * 1024


@dataclass
class RayRequest:
    """The native request of the Ray scheduler; it may be changed until it is submitted."""

    job: LocalRequest
    #: Where the Ray Jobs API is.
    address: str = DEFAULT_ADDRESS
    #: The Python of the cluster, one that has Holdfast.
    python: str = "python"
    runtime_env: dict[str, Any] = field(default_factory=dict)

    def entrypoint(self) -> str:
        """Return the command of the job."""
        return shlex.join([self.python, "-P", "-m", "holdfast.schedulers.ray.driver"])

    def metadata(self) -> dict[str, str]:
        """Return what Ray keeps of the job: enough to describe it from anywhere."""
        return {
            SESSION_KEY: self.job.session,
            NAME_KEY: self.job.name,
            JOB_KEY: json.dumps(self.job.to_json(), default=str),
        }


def check(app: AppDef) -> None:
    """Refuse an app that Ray cannot run; raises `UsageError`."""
    if not app.roles:
        raise UsageError(f"the app '{app.name}' has no roles: add at least one to `roles`")
    for role in app.roles:
        if role.mounts:
            raise UsageError(
                f"the role '{role.name}' has mounts: Ray runs it without a container, so nothing is mounted"
            )


def address_of(text: str) -> str:
    """Return the address of the Ray Jobs API as a URL; one without a scheme is plain HTTP."""
    return text.rstrip("/") if "://" in text else f"http://{text.rstrip('/')}"


def bundle(role: Role) -> dict[str, float]:
    """Return what a replica needs of a node; one CPU where its role does not say."""
    resource = role.resource
    found = {"CPU": float(resource.cpu) if resource.cpu > 0 else 1.0}
    if resource.gpu > 0:
        found["GPU"] = float(resource.gpu)
    if resource.memMB > 0:
        found["memory"] = float(resource.memMB * MIB)
    return {**found, **{str(name): float(count) for name, count in resource.devices.items()}}


def least(job: LocalRequest) -> int:
    """Return how many replicas must be placed before any is started; the others come when there are nodes."""
    return sum(
        role.num_replicas if role.min_replicas is None else min(role.min_replicas, role.num_replicas)
        for role in job.roles
    )


def in_order(job: LocalRequest) -> list[int]:
    """Return the numbers of all replicas, those that must be placed first."""
    limits = {role.name: role.num_replicas if role.min_replicas is None else role.min_replicas for role in job.roles}
    needed = [n for n, each in enumerate(job.replicas) if each.id < limits[each.role]]
    return needed + [n for n in range(len(job.replicas)) if n not in needed]


def meets_at_driver(job: LocalRequest) -> bool:
    """Whether the replicas are agents of ours, for which the driver runs the coordinator."""
    return len(job.replicas) > 1 and all(LAUNCH in " ".join(each.argv) for each in job.replicas)


def fits(wanted: Mapping[str, float], has: Mapping[str, float]) -> bool:
    """Whether a node has what a replica needs."""
    return all(has.get(name, 0.0) >= amount for name, amount in wanted.items())


def show(request: RayRequest, sizes: Mapping[str, tuple[int, int]] | None = None) -> str:
    """Write the request out for people."""
    lines = [
        f"job {request.job.app_id} at {request.address}",
        f"  $ {request.entrypoint()}",
        f"  runtime_env {json.dumps({**request.runtime_env, 'working_dir': '<job folder>'})}",
    ]
    lines += [
        f"  role {role.name}: {role.num_replicas} bundles of {json.dumps(bundle(role))}, one on a node"
        for role in request.job.roles
    ]
    if meets_at_driver(request.job):
        lines.append("  the driver runs the coordinator")
    return "\n".join([*lines, *show_parts(request.job, sizes)])
