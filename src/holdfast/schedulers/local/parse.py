"""From a job's records to its status, also when its supervisor is gone. Pure.

A job whose supervisor is gone without a final state is not running: its replicas die with it. So such a job has
ended, and the reader says why: the machine was rebooted, or the supervisor was killed.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.schedulers.local.record import JobRecord, Life, LocalRequest, ReplicaRecord
from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse
from holdfast.specs.app import NONE
from holdfast.specs.states import AppState, ReplicaStatus, RoleStatus, is_terminal


@dataclass(frozen=True, slots=True)
class Verdict:
    """The true state of a job, and its description; `cause` is why replicas ended that have no final state."""

    state: AppState
    msg: str
    cause: str = ""


def judge(record: JobRecord, life: Life) -> Verdict:
    """Tell a job's true state from its last record and its life."""
    recorded = AppState[record.state]
    msg = "; ".join(filter(None, [record.msg, *record.notes]))
    if life.alive or is_terminal(recorded):
        return Verdict(recorded, msg)
    if not life.same_boot and not life.same_host:
        return Verdict(AppState.UNKNOWN, f"it was submitted on {record.host}, which cannot be asked from here")
    if not life.same_boot:
        why = f"the machine was rebooted at {life.booted_at} while the job was {recorded.name}"
    elif record.supervisor is not None:
        why = f"its supervisor (process {record.supervisor.pid}) was killed while the job was {recorded.name}"
    else:
        why = "its supervisor never began: the submitting process ended too early"
    if life.cancel_asked:
        return Verdict(AppState.CANCELLED, f"the job was cancelled; {why}", why)
    return Verdict(AppState.FAILED, why, why)


def describe(request: LocalRequest, record: JobRecord, life: Life) -> DescribeAppResponse:
    """Return the status of a job."""
    verdict = judge(record, life)
    replicas = [_replica(each, verdict, record.host) for each in record.replicas]
    names = [role.name for role in request.role_plans]
    failed = [each for each in replicas if each.state is AppState.FAILED and each.structured_error_msg != NONE]
    return DescribeAppResponse(
        app_id=request.app_id,
        state=verdict.state,
        num_restarts=record.num_restarts,
        msg=verdict.msg,
        structured_error_msg=min(failed, key=_ended).structured_error_msg if failed else NONE,
        metadata=dict(request.metadata),
        roles_statuses=[RoleStatus(name, [each for each in replicas if each.role == name]) for name in names],
        roles=request.roles,
        name=request.name,
        submitted_at=record.submitted_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
    )


def listing(app_id: str, handle: str, record: JobRecord, life: Life) -> ListAppResponse:
    """Make one line of the list of jobs."""
    return ListAppResponse(app_id, judge(record, life).state, handle, record.name, record.submitted_at)


def _replica(record: ReplicaRecord, verdict: Verdict, host: str) -> ReplicaStatus:
    status = ReplicaStatus(
        id=record.id,
        state=AppState[record.state],
        role=record.role,
        hostname=host,
        structured_error_msg=record.error or NONE,
        exit_code=record.exit_code,
        started_at=record.started_at,
        ended_at=record.ended_at,
        cause=record.cause,
        reason=record.reason,
        last_line=record.last_line,
        restarts=record.restarts,
    )
    if verdict.state is AppState.UNKNOWN:
        status.state = AppState.UNKNOWN
    elif is_terminal(verdict.state) and not is_terminal(status.state):
        status.state, status.cause, status.reason = verdict.state, verdict.cause, None
    return status


def _ended(replica: ReplicaStatus) -> float:
    return replica.ended_at or 0.0
