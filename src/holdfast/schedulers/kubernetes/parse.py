"""From the objects of a job to its status. Pure.

A replica is what its Job and its newest pod say. How it ended stands in the pod's termination message, where the
program in the pod left its last word; where it could not, Kubernetes' own reasons are told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.schedulers import cluster
from holdfast.schedulers.kubernetes.last_word import decode
from holdfast.schedulers.kubernetes.names import CANCELLED_ANNOTATION, CONTAINER, REPLICA_LABEL, ROLE_LABEL, role_names
from holdfast.schedulers.local.parse import replica_status
from holdfast.schedulers.local.record import LocalRequest, ReplicaPlan, ReplicaRecord, RolePlan
from holdfast.schedulers.replies import DescribeAppResponse
from holdfast.specs.app import NONE
from holdfast.specs.states import AppState, ReplicaStatus, RoleStatus, is_terminal

#: What some of Kubernetes' words mean.
MEANINGS = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and may not be pulled",
    "InvalidImageName": "the name of its image is wrong",
    "CreateContainerConfigError": "its container cannot be made",
    "CreateContainerError": "its container cannot be made",
    "OOMKilled": "it used more memory than it had asked for",
    "Evicted": "its node needed the room",
    "DeadlineExceeded": "its time is over",
    "ContainerCannotRun": "its container could not start",
    "StartError": "its container could not start",
    "NodeLost": "its node does not answer",
}
#: Reasons that pass by themselves, and are no news.
_ORDINARY = frozenset({"ContainerCreating", "PodInitializing", "Completed", "Error"})
_INSUFFICIENT = re.compile(r"(\d+) Insufficient ([^\s,]+?)[.,]?(?=\s|$|,)")
_NODES = re.compile(r"(\d+)/(\d+) nodes are available:")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|\+00:00)")
_LAST_LINE_CHARS_MAX = 300


@dataclass(frozen=True)
class Seen:
    """What can be seen of one job: its record, and the objects that belong to it."""

    job: LocalRequest
    record: Mapping[str, Any]
    jobs: Sequence[Mapping[str, Any]] = ()
    pods: Sequence[Mapping[str, Any]] = ()
    #: What Kubernetes said of Jobs that have no pod.
    events: Sequence[Mapping[str, Any]] = ()
    #: The JobSet or Volcano job; None where the job is made of core objects, or that was removed.
    whole: Mapping[str, Any] | None = None
    is_wrapped: bool = False

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled."""
        return CANCELLED_ANNOTATION in (self.record["metadata"].get("annotations") or {})


@dataclass(frozen=True)
class _Replica:
    """The objects of one replica, its pods from the oldest to the newest."""

    plan: ReplicaPlan
    job: Mapping[str, Any] | None
    pods: Sequence[Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def describe(app_id: str, seen: Seen) -> DescribeAppResponse:
    """Say how a job is doing."""
    replicas = statuses(seen)
    state, msg = judge(seen, replicas)
    if is_terminal(state):
        replicas = [_after_the_end(each, state) for each in replicas]
    failed = [each for each in replicas if each.state is AppState.FAILED and each.structured_error_msg != NONE]
    starts = [each.started_at for each in replicas if each.started_at is not None]
    ends = [each.ended_at for each in replicas if each.ended_at is not None]
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=sum(each.restarts for each in replicas),
        msg=msg,
        structured_error_msg=min(failed, key=_ended).structured_error_msg if failed else NONE,
        metadata=dict(seen.job.metadata),
        roles_statuses=[
            RoleStatus(role.name, [each for each in replicas if each.role == role.name]) for role in seen.job.role_plans
        ],
        roles=seen.job.roles,
        name=seen.job.name,
        submitted_at=seconds(seen.record["metadata"].get("creationTimestamp")),
        started_at=min(starts, default=None),
        ended_at=max(ends, default=None) if is_terminal(state) else None,
    )


def judge(seen: Seen, replicas: Sequence[ReplicaStatus]) -> tuple[AppState, str]:
    """Tell the state of a job, and what to say about it."""
    live = [each for each in replicas if each.state in (AppState.PENDING, AppState.RUNNING)]
    phase = _phase(seen.whole)
    if live and not is_terminal(phase):
        words = ["the job is being cancelled"] if seen.cancelled else []
        words += [f"{each.role}/{each.id} failed: {each.cause}" for each in replicas if each.state is AppState.FAILED]
        words += _waits(replicas) if not seen.cancelled else []
        state = AppState.RUNNING if any(each.state is AppState.RUNNING for each in live) else AppState.PENDING
        return state, "; ".join(words)
    if seen.cancelled:
        return AppState.CANCELLED, "the job was cancelled"
    if any(each.state is AppState.UNKNOWN for each in replicas) and not is_terminal(phase):
        return AppState.UNKNOWN, "its Jobs were removed from the cluster, by ttl_s or by another program"
    ended = cluster.conclude(seen.job.role_plans, replicas)
    if phase is AppState.FAILED and ended.state is AppState.SUCCEEDED:
        return phase, "the cluster says that it failed"
    return ended.state, ended.msg


def statuses(seen: Seen) -> list[ReplicaStatus]:
    """Describe every replica."""
    names = role_names(seen.job.roles)
    found = []
    for plan in seen.job.replicas:
        labels = (names[plan.role], str(plan.id))
        pods = sorted((pod for pod in seen.pods if _who(pod) == labels), key=_born)
        job = _job_of(seen, names[plan.role], plan.id)
        events = [] if job is None else [each for each in seen.events if _about(each) == job["metadata"]["name"]]
        status = _status(_Replica(plan, job, pods, events), seen)
        # Pods that came in the place of lost or failed ones.
        found.append(replace(status, restarts=status.restarts + max(0, len(pods) - 1)))
    late = _late(seen.job.role_plans, found)
    return [_without(each) if (each.role, each.id) in late else each for each in found]


def leftovers(seen: Seen, replicas: Sequence[ReplicaStatus]) -> list[str]:
    """Name the Jobs of a job that has ended which would still start pods, or keep some: they came too late."""
    if seen.is_wrapped or judge(seen, replicas)[0] is not AppState.SUCCEEDED:
        return []
    names = role_names(seen.job.roles)
    jobs = [_job_of(seen, names[each.role], each.id) for each in replicas if each.state is AppState.CANCELLED]
    return [str(job["metadata"]["name"]) for job in jobs if job is not None]


def _job_of(seen: Seen, role: str, number: int) -> Mapping[str, Any] | None:
    return next((job for job in seen.jobs if _who(job) == (role, str(number))), None)


def _late(plans: Sequence[RolePlan], replicas: Sequence[ReplicaStatus]) -> set[tuple[str, int]]:
    """Name the replicas of elastic roles that are not needed any more: enough have succeeded before these began.

    An elastic role ends together. A replica that got no node until then, or whose pod came back after that, would wait
    for others that have gone.
    """
    found = set()
    for plan in plans:
        mine = [each for each in replicas if each.role == plan.name]
        ends = [each.ended_at or 0.0 for each in mine if each.state is AppState.SUCCEEDED]
        if plan.min_replicas is None or len(ends) < max(plan.min_replicas, 1):
            continue
        waits = [each for each in mine if each.state in (AppState.PENDING, AppState.UNKNOWN)]
        waits += [each for each in mine if each.state is AppState.RUNNING and (each.started_at or 0.0) > max(ends)]
        found |= {(each.role, each.id) for each in waits}
    return found


def _without(status: ReplicaStatus) -> ReplicaStatus:
    return replace(status, state=AppState.CANCELLED, cause="the others had finished before it began", reason=None)


def _status(replica: _Replica, seen: Seen) -> ReplicaStatus:
    """Describe one replica: the word of its Job where it has ended, else that of its newest pod."""
    plan, pods = replica.plan, replica.pods
    condition = _condition(replica.job)
    if condition is not None and condition["type"] == "Complete":
        best = [pod for pod in pods if pod["status"].get("phase") == "Succeeded"] or pods[-1:]
        return replace(_ended_pod(plan, best[-1] if best else None), state=AppState.SUCCEEDED, cause="", reason=None)
    if condition is not None:
        last = next((pod for pod in reversed(pods) if pod["status"].get("phase") == "Failed"), None)
        if last is None:
            return cluster.unstarted(plan.role, plan.id, AppState.FAILED, _sentence(condition))
        return replace(_ended_pod(plan, last), state=AppState.FAILED)
    if pods:
        newest = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]] or pods
        return _of_pod(plan, newest[-1], seen)
    if replica.job is None and not seen.is_wrapped:
        state = AppState.CANCELLED if seen.cancelled else AppState.UNKNOWN
        return cluster.unstarted(plan.role, plan.id, state, "the job was cancelled" if seen.cancelled else "")
    if seen.is_wrapped and seen.cancelled:
        return cluster.unstarted(plan.role, plan.id, AppState.CANCELLED, "the job was cancelled")
    said = [str(each.get("message", "")) for each in replica.events if each.get("type") == "Warning"]
    return cluster.unstarted(plan.role, plan.id, AppState.PENDING, said[-1] if said else "")


def _of_pod(plan: ReplicaPlan, pod: Mapping[str, Any], seen: Seen) -> ReplicaStatus:
    """Describe a replica by its newest pod, while its Job has not ended."""
    phase = pod["status"].get("phase", "Pending")
    if phase == "Failed":
        ended = _ended_pod(plan, pod)
        if seen.is_wrapped and is_terminal(_phase(seen.whole)):
            return ended
        # The Job starts another pod, or says in a moment that it does not.
        return replace(ended, state=AppState.PENDING, cause=f"it starts again after: {ended.cause}", ended_at=None)
    if phase == "Succeeded":
        return replace(_ended_pod(plan, pod), state=AppState.SUCCEEDED if seen.is_wrapped else AppState.RUNNING)
    status = cluster.unstarted(plan.role, plan.id, AppState.RUNNING if phase == "Running" else AppState.PENDING)
    status.hostname = str(pod["spec"].get("nodeName") or "")
    running = _container(pod).get("state", {}).get("running")
    status.started_at = seconds((running or {}).get("startedAt"))
    if "deletionTimestamp" in pod["metadata"]:
        status.cause = "its pod is being ended"
    elif phase == "Pending":
        status.cause = pending_reason(pod)
    elif _is_lost(pod):
        status.cause = f"its node {status.hostname} does not answer"
    return status


def pending_reason(pod: Mapping[str, Any]) -> str:
    """Say why a pod has not started, in Kubernetes' word and in plain ones; empty where it is about to."""
    for condition in pod["status"].get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason') or 'Unschedulable'}: {_nodes_lack(str(condition.get('message') or ''))}"
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason and reason not in _ORDINARY:
            said = str(waiting.get("message") or "")
            return (
                f"{reason} ({MEANINGS[reason]}){f': {said}' if said else ''}"
                if reason in MEANINGS
                else f"{reason}: {said}"
            )
    return ""


def _nodes_lack(message: str) -> str:
    """Shorten what the scheduler says of nodes where all lack the same."""
    text = message.split("preemption:")[0].strip()
    nodes = _NODES.match(text)
    lacking = _INSUFFICIENT.findall(text)
    if nodes and len(lacking) == 1 and lacking[0][0] == nodes[2]:
        count, what = lacking[0]
        return f"{nodes[1]}/{nodes[2]} nodes have {what} ({count} Insufficient {what})"
    return text.rstrip(".")


def _ended_pod(plan: ReplicaPlan, pod: Mapping[str, Any] | None) -> ReplicaStatus:
    """Describe a replica by a pod that has ended: by the last word that it left, or by what Kubernetes says."""
    if pod is None:
        return cluster.unstarted(plan.role, plan.id, AppState.FAILED, "its pods are gone")
    ended = _container(pod).get("state", {}).get("terminated") or {}
    host = str(pod["spec"].get("nodeName") or "")
    record = decode(str(ended.get("message") or ""))
    if record is not None and not pod["status"].get("reason"):
        record.role, record.id = plan.role, plan.id
        record.started_at = record.started_at or seconds(ended.get("startedAt"))
        record.ended_at = record.ended_at or seconds(ended.get("finishedAt"))
        if (why := str(ended.get("reason"))) == "OOMKilled" and "memory" not in record.cause:
            record.reason = f"{why} ({MEANINGS[why]})"  # the kernel tells the runtime, and not always the pod
            record.cause = f"{record.reason}; {record.cause}"
        status = replica_status(record, host)
        return status if status.state is not AppState.CANCELLED else replace(status, state=AppState.FAILED)
    code = ended.get("exitCode")
    reason = str(pod["status"].get("reason") or ended.get("reason") or "")
    said = str(pod["status"].get("message") or "").strip().rstrip(".")
    lines = [line.strip() for line in str(ended.get("message") or "").splitlines() if line.strip()]
    last = lines[-1][:_LAST_LINE_CHARS_MAX] if lines else ""
    words = f"{reason} ({MEANINGS[reason]})" if reason in MEANINGS else "" if reason in _ORDINARY else reason
    if said:
        words = f"{words}: {said}" if words else said
    if not words:
        words = f"exit code {code}" if code is not None else "its pod was lost"
    cause = f"{words}; its last line was: {last}" if last else words
    found = ReplicaRecord(role=plan.role, id=plan.id, state=AppState.FAILED.name, exit_code=code, cause=cause)
    found.last_line = last
    found.started_at, found.ended_at = seconds(ended.get("startedAt")), seconds(ended.get("finishedAt"))
    return replica_status(found, host)


def _after_the_end(status: ReplicaStatus, state: AppState) -> ReplicaStatus:
    if state is AppState.CANCELLED and not is_terminal(status.state):
        return replace(status, state=AppState.CANCELLED, cause="the job was cancelled")
    return cluster.lost(status, "its pod is gone")


def _waits(replicas: Sequence[ReplicaStatus]) -> list[str]:
    """Say what replicas wait for: each reason once."""
    found: dict[str, list[str]] = {}
    for each in replicas:
        if each.state is AppState.PENDING and each.cause:
            found.setdefault(each.cause, []).append(f"{each.role}/{each.id}")
    return [f"{', '.join(names)}: {cause}" if len(found) > 1 else cause for cause, names in found.items()]


def _phase(whole: Mapping[str, Any] | None) -> AppState:
    """Tell the state of a JobSet or a Volcano job; UNKNOWN where it has not ended."""
    status = (whole or {}).get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Completed", "Failed"):
            return AppState.SUCCEEDED if condition["type"] == "Completed" else AppState.FAILED
    phase = (status.get("state") or {}).get("phase", "")
    known = {"Completed": AppState.SUCCEEDED, "Failed": AppState.FAILED, "Aborted": AppState.CANCELLED}
    return known.get(phase, AppState.CANCELLED if phase == "Terminated" else AppState.UNKNOWN)


def _condition(job: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return how a Job has ended; None while it has not."""
    for condition in ((job or {}).get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            return dict(condition)
    return None


def _sentence(condition: Mapping[str, Any]) -> str:
    return ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key)) or "its Job failed"


def _is_lost(pod: Mapping[str, Any]) -> bool:
    """Whether a pod's node has fallen silent: then no one says any more that the pod is ready."""
    status = pod["status"]
    return status.get("reason") == "NodeLost" or any(
        condition.get("type") == "Ready" and condition.get("reason") == "NodeNotReady"
        for condition in status.get("conditions") or ()
    )


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    status = pod["status"]
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((each for each in _containers(pod) if each.get("name") == CONTAINER), {})


def _who(obj: Mapping[str, Any]) -> tuple[str, str]:
    labels = obj["metadata"].get("labels") or {}
    return labels.get(ROLE_LABEL, ""), labels.get(REPLICA_LABEL, "")


def _born(pod: Mapping[str, Any]) -> tuple[float, str]:
    return seconds(pod["metadata"].get("creationTimestamp")) or 0.0, str(pod["metadata"]["name"])


def _about(event: Mapping[str, Any]) -> str:
    return str((event.get("involvedObject") or {}).get("name") or "")


def _ended(replica: ReplicaStatus) -> float:
    return replica.ended_at or 0.0


def seconds(text: str | None) -> float | None:
    """Read a time as Kubernetes writes it; returns seconds since 1970."""
    match = _TIME.fullmatch(text or "")
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction = float(f"0.{match[7]}") if match[7] else 0.0
    return _days(year, month, day) * 86400.0 + hour * 3600 + minute * 60 + second + fraction


def _days(year: int, month: int, day: int) -> int:
    """Count the days since 1970; the year is taken to begin in March, so that a leap day is its last."""
    year -= month <= 2
    shifted = (month + 9) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * shifted + 2) // 5 + day - 1 - 719468
