"""From what hosts say of their replicas to a status of the whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.schedulers import cluster
from holdfast.schedulers.replies import DescribeAppResponse
from holdfast.schedulers.ssh.hosts import Placed
from holdfast.schedulers.ssh.render import SshRequest
from holdfast.specs.app import NONE
from holdfast.specs.states import AppState, ReplicaStatus, RoleStatus, is_terminal


@dataclass(frozen=True)
class Reply:
    """What one host said of its replica, or why it said nothing."""

    status: ReplicaStatus | None = None
    unreachable: str = ""


def parse_reply(placed: Placed, data: Mapping[str, Any]) -> Reply:
    """Read what the program on a host answered."""
    found = data.get("replica")
    if found is None:
        return Reply()
    known = {name: found[name] for name in ReplicaStatus.__dataclass_fields__ if name in found}
    status = ReplicaStatus(**{**known, "state": AppState[found["state"]]})
    status.hostname = placed.host
    return Reply(status)


def status_of(placed: Placed, reply: Reply) -> ReplicaStatus:
    """Describe a replica, also one whose host does not answer."""
    if reply.status is not None:
        return reply.status
    if reply.unreachable:
        status = cluster.unstarted(placed.role, placed.number, AppState.UNKNOWN, reply.unreachable)
    else:
        gone = "its job is not on the host any more"
        status = cluster.unstarted(placed.role, placed.number, AppState.FAILED, gone)
    status.hostname = placed.host
    return status


def describe(
    request: SshRequest, replies: Sequence[Reply], submitted_at: float | None, *, cancelled: bool
) -> DescribeAppResponse:
    """Say how a job is doing."""
    replicas = [status_of(placed, reply) for placed, reply in zip(request.placed, replies, strict=True)]
    state, msg = judge(request, replicas, cancelled=cancelled)
    failed = [each for each in replicas if each.state is AppState.FAILED and each.structured_error_msg != NONE]
    starts = [each.started_at for each in replicas if each.started_at is not None]
    ends = [each.ended_at for each in replicas if each.ended_at is not None]
    job = request.job
    return DescribeAppResponse(
        app_id=job.app_id,
        state=state,
        num_restarts=sum(each.restarts for each in replicas),
        msg=msg,
        structured_error_msg=failed[0].structured_error_msg if failed else NONE,
        metadata=dict(job.metadata),
        roles_statuses=[
            RoleStatus(role.name, [each for each in replicas if each.role == role.name]) for role in job.role_plans
        ],
        roles=job.roles,
        name=job.name,
        submitted_at=submitted_at,
        started_at=min(starts, default=None),
        ended_at=max(ends, default=None) if is_terminal(state) else None,
    )


def judge(request: SshRequest, replicas: Sequence[ReplicaStatus], *, cancelled: bool) -> tuple[AppState, str]:
    """Tell the state of a job from those of its replicas, and what to say about it."""
    silent = [each for each in replicas if each.state is AppState.UNKNOWN]
    notes = [f"{each.hostname} does not answer: {each.cause}" for each in silent]
    live = [each for each in replicas if each.state in (AppState.PENDING, AppState.RUNNING)]
    if live:
        notes += [f"{each.role}/{each.id} failed: {each.cause}" for each in replicas if each.state is AppState.FAILED]
        state = AppState.RUNNING if any(each.state is AppState.RUNNING for each in live) else AppState.PENDING
        return state, "; ".join([*(["the job is being cancelled"] if cancelled else []), *notes])
    known = [cluster.lost(each, "its host does not answer") for each in replicas]
    ended = cluster.conclude(request.job.role_plans, known)
    if ended.state is AppState.SUCCEEDED:
        return AppState.SUCCEEDED, ended.msg
    if cancelled:
        return AppState.CANCELLED, "; ".join(["the job was cancelled", *notes])
    if any(each.state in (AppState.FAILED, AppState.CANCELLED) for each in replicas):
        return AppState.FAILED, "; ".join([ended.msg, *notes])
    return AppState.UNKNOWN, "; ".join(notes)
