"""From what Ray says of a job, and from the lines of its driver, to a status and to logs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.schedulers.local.parse import replica_status
from holdfast.schedulers.local.record import LocalRequest, Progress
from holdfast.schedulers.replies import DescribeAppResponse
from holdfast.specs.app import NONE
from holdfast.specs.states import AppState, ReplicaStatus, RoleStatus, is_terminal
from holdfast.typed import learned

#: What a line of the driver begins with.
MARK = "@holdfast "
STATES = {
    "PENDING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "STOPPED": AppState.CANCELLED,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}


@dataclass(frozen=True)
class JobInfo:
    """What Ray says of a job; times are seconds since 1970."""

    id: str
    status: str
    message: str = ""
    started: float | None = None
    ended: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> AppState:
        """Where the job stands, in our words."""
        return STATES.get(self.status, AppState.UNKNOWN)


@dataclass
class Story:
    """What the driver has written so far."""

    progress: Progress = field(default_factory=Progress)
    hosts: dict[str, str] = field(default_factory=dict)
    #: Why the job waits, while it does.
    waiting: str = ""
    #: The last line that is not the driver's own: the reason where it could not begin.
    other: str = ""


def record(**facts: Any) -> str:
    """Write a line of the driver."""
    return MARK + json.dumps(facts, ensure_ascii=False)


def records(lines: Iterable[str]) -> Iterator[dict[str, Any] | str]:
    """Read the lines of a job's log: those of the driver as data, others as they are."""
    for line in lines:
        if not line.startswith(MARK):
            yield line
            continue
        try:
            yield dict(json.loads(line[len(MARK) :]))
        except ValueError:
            yield line  # it was cut off


def read_story(lines: Iterable[str]) -> Story:
    """Read how a job is doing out of its log."""
    story = Story()
    for each in records(lines):
        if isinstance(each, str):
            story.other = each.strip() or story.other
        elif "progress" in each:
            story.progress = msgspec.convert(each["progress"], learned(Progress))
            story.hosts = dict(each.get("hosts", {}))
            story.waiting = ""
        elif "waiting" in each:
            story.waiting = str(each["waiting"])
    return story


def lines_of(lines: Iterable[str], role: str, number: int) -> Iterator[bytes]:
    """Pick the output of one replica out of a job's log, as lines of a combined log."""
    wanted = [role, number]
    for each in records(lines):
        if isinstance(each, dict) and each.get("of") == wanted:
            yield str(each["line"]).encode("utf-8", "surrogateescape")


def describe(info: JobInfo, job: LocalRequest, story: Story) -> DescribeAppResponse:
    """Say how a job is doing."""
    replicas = [
        _settled(replica_status(each, story.hosts.get(f"{each.role}/{each.id}", "")), info)
        for each in story.progress.replicas
    ]
    failed = [each for each in replicas if each.state is AppState.FAILED and each.structured_error_msg != NONE]
    starts = [each.started_at for each in replicas if each.started_at is not None]
    ends = [each.ended_at for each in replicas if each.ended_at is not None]
    state = info.state
    if state is AppState.RUNNING and not any(each.state is AppState.RUNNING for each in replicas):
        state = AppState.PENDING if not starts else state
    return DescribeAppResponse(
        app_id=info.id,
        state=state,
        num_restarts=story.progress.num_restarts,
        msg=_sentence(info, state, story),
        structured_error_msg=failed[0].structured_error_msg if failed else NONE,
        metadata=dict(job.metadata),
        roles_statuses=[
            RoleStatus(role.name, [each for each in replicas if each.role == role.name]) for role in job.role_plans
        ],
        roles=job.roles,
        name=job.name,
        submitted_at=info.started,
        started_at=min(starts, default=None),
        ended_at=(info.ended or max(ends, default=None)) if is_terminal(state) else None,
    )


def _settled(replica: ReplicaStatus, info: JobInfo) -> ReplicaStatus:
    """Say of a replica whose last word is that it runs that it has ended, where the job has."""
    if is_terminal(info.state) and not is_terminal(replica.state):
        replica.state = AppState.CANCELLED if info.state is AppState.CANCELLED else AppState.FAILED
        replica.cause, replica.reason = "the job ended before it said more", None
    return replica


def _sentence(info: JobInfo, state: AppState, story: Story) -> str:
    if state is AppState.PENDING:
        return story.waiting or _plain(info.message)
    if state is AppState.CANCELLED:
        return "the job was cancelled"
    if state is AppState.FAILED and not story.progress.replicas:
        if re.search(r"No module named '?holdfast", f"{info.message}\n{story.other}"):
            return "the cluster's Python has no Holdfast: install it there, or let Ray do so with -cfg pip=holdfast"
        return f"its driver could not begin: {story.other or _plain(info.message)}"
    if state is AppState.FAILED and story.progress.state != AppState.FAILED.name:
        return f"its driver was lost: {_plain(info.message)}"
    return story.progress.msg


def _plain(message: str) -> str:
    return re.sub(r"\s+", " ", message).strip()[-500:]
