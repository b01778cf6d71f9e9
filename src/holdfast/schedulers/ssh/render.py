"""From an app and its hosts to what each host gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.schedulers import cluster
from holdfast.schedulers.local.record import RECORD_VERSION, LocalRequest, check_version
from holdfast.schedulers.local.render import show_parts
from holdfast.schedulers.ssh.hosts import Placed
from holdfast.specs.app import AppDef, RetryPolicy
from holdfast.typed import learned


@dataclass
class Access:
    """How hosts are reached, and with which Python."""

    python: str = "python3"
    #: A file of settings for ssh, in place of the user's own.
    config: str = ""
    #: Further flags of ssh.
    flags: list[str] = field(default_factory=list)
    timeout_s: float = 10.0


@dataclass
class SshRequest:
    """The native request of the SSH scheduler; it may be changed until it is submitted."""

    job: LocalRequest
    placed: list[Placed]
    access: Access
    #: Where the other hosts find the first one; empty for what ssh knows of it.
    first_host: str = ""

    def to_json(self) -> dict[str, Any]:
        """Describe the request as plain data, without the job, which has a record of its own."""
        data = {name: msgspec.to_builtins(value) for name, value in vars(self).items() if name != "job"}
        return {**data, "version": RECORD_VERSION}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], job: LocalRequest) -> SshRequest:
        """Read what `to_json` wrote; fields that are not known here are left out."""
        check_version(data)
        placed = msgspec.convert(data["placed"], learned(list[Placed]))
        return cls(job, placed, msgspec.convert(data["access"], learned(Access)), str(data.get("first_host", "")))


def check(app: AppDef) -> None:
    """Refuse an app that several hosts without a master cannot run; raises `UsageError`."""
    replicas = sum(role.num_replicas for role in app.roles)
    for role in app.roles:
        if role.mounts:
            raise UsageError(f"the role '{role.name}' has mounts: hosts run without containers, so nothing is mounted")
        if role.max_retries and replicas > 1 and role.retry_policy is not RetryPolicy.REPLICA:
            raise UsageError(
                f"the role '{role.name}' wants all replicas to be started again (retry policy {role.retry_policy}): "
                "hosts look after their own replica alone; use dist.elastic, whose lost replicas come back one by one, "
                "or --max-restarts, which restarts all workers"
            )


def host_id(app_id: str, place: int) -> str:
    """Return the id of the local job of one replica; no two are the same, also where hosts share a home folder."""
    return f"{app_id}.{place}"


def for_host(request: SshRequest, place: int) -> LocalRequest:
    """Return the local job of one host, with what that host fills in still open."""
    where = request.placed[place]
    part = cluster.portion(request.job, where.role, where.number)
    only = request.job.role_plans[0] if len(request.job.replicas) == 1 else None
    if only is not None:  # then the whole app is this replica
        part = replace(part, role_plans=[replace(part.role_plans[0], max_retries=only.max_retries)])
    return replace(part, app_id=host_id(request.job.app_id, place), roles=[])


def show(request: SshRequest, sizes: Mapping[str, tuple[int, int]] | None = None) -> str:
    """Write the request out for people."""
    access = request.access
    lines = [f"job {request.job.app_id} on {len(request.placed)} hosts, with their {access.python}"]
    lines += [f"  {each.host} runs {each.role}/{each.number}" for each in request.placed]
    return "\n".join([*lines, *show_parts(request.job, sizes)])


def used(job: LocalRequest, placed: Sequence[Placed]) -> LocalRequest:
    """Leave out the replicas for which there is no host."""
    there = {(each.role, each.number) for each in placed}
    return replace(job, replicas=[each for each in job.replicas if (each.role, each.id) in there])
