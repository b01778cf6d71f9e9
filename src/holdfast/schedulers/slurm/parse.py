"""From what Slurm prints and what a job's programs wrote down to a status. Pure.

Fields are asked for by name (`scontrol show job -o`, `sacct -P -o`, the job completion file), never by JSON, whose
layout differs between versions of Slurm. Times are seconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from holdfast.schedulers import cluster
from holdfast.schedulers.local.record import JobRecord, LocalRequest
from holdfast.schedulers.replies import DescribeAppResponse
from holdfast.specs.app import NONE
from holdfast.specs.states import AppState, ReplicaStatus, RoleStatus, is_terminal

#: Slurm's words for where a job stands.
STATES = {
    **dict.fromkeys(["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"], AppState.PENDING),
    **dict.fromkeys(["RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "SUSPENDED", "STOPPED"], AppState.RUNNING),
    **dict.fromkeys(["RESIZING"], AppState.RUNNING),
    "COMPLETED": AppState.SUCCEEDED,
    **dict.fromkeys(["CANCELLED", "REVOKED"], AppState.CANCELLED),
    **dict.fromkeys(["FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "PREEMPTED"], AppState.FAILED),
    "OUT_OF_MEMORY": AppState.FAILED,
}
#: What some of Slurm's words mean.
MEANINGS = {
    "Resources": "the nodes that it needs are not free",
    "Priority": "jobs of higher priority wait for the same nodes",
    "Dependency": "the jobs that it depends on have not ended",
    "DependencyNeverSatisfied": "a job that it depends on ended otherwise than asked for; cancel it",
    "BeginTime": "its time has not come, as for a while after a requeue",
    "JobHeldUser": "it is held by its user; release it with: scontrol release",
    "JobHeldAdmin": "it is held by an administrator",
    "ReqNodeNotAvail": "nodes that it asks for are down, drained or reserved",
    "PartitionNodeLimit": "it asks for more nodes than its partition may use",
    "PartitionTimeLimit": "it asks for more time than its partition allows",
    "PartitionDown": "its partition is down",
    "TIMEOUT": "it reached its time limit",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "it used more memory than it had asked for",
    "PREEMPTED": "a job of higher priority took its nodes",
    "BOOT_FAIL": "a node could not be started",
    "DEADLINE": "its deadline passed",
}
#: Exit codes of a program that SIGTERM has ended, and of a shell whose program it has.
TOLD_TO_END = (-15, 143)
_FIELD = re.compile(r"(?:^|(?<= ))([A-Za-z][\w/:]*)=")
_NODES = re.compile(r"([^,\[]+(?:\[[^\]]*\][^,\[]*)*)")


class BatchRecord(msgspec.Struct, kw_only=True):
    """What the batch program writes down: how often the job was started, and its last word."""

    version: int = 1
    #: Starts of the job by Slurm, and of steps in them.
    starts: int = 0
    steps: int = 0
    #: Retries that were used up.
    failures: int = 0
    requeues: int = 0
    msg: str = ""
    #: The name of the state in which the job ended; empty until then.
    ended: str = ""
    ended_at: float | None = None
    #: Nodes that each role has got.
    sizes: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What Slurm says of a job."""

    id: str
    state: str
    reason: str = ""
    #: The job's own exit code, and the signal that ended it.
    exit_code: int = 0
    signal: int = 0
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    nodes: str = ""
    restarts: int = 0

    @property
    def app_state(self) -> AppState:
        """Where the job stands, in our words."""
        return STATES.get(self.state, AppState.UNKNOWN)


def parse_jobs(text: str) -> list[JobInfo]:
    """Read what `scontrol show job -o` prints, or the job completion file: a job on each line."""
    return [_info(_fields(line)) for line in text.splitlines() if line.startswith("JobId=")]


def parse_accounts(text: str) -> list[JobInfo]:
    """Read what `sacct -P` prints: names of fields, then a job on each line."""
    names, *lines = [line.split("|") for line in text.splitlines() if line] or [[]]
    found = []
    for line in lines:
        row = dict(zip(names, line, strict=False))
        if "." not in row.get("JobID", "."):  # a step is JOB.STEP
            as_shown = {"JobId": row["JobID"], "JobState": row.get("State", ""), "Reason": row.get("Reason", "")}
            as_shown |= {"ExitCode": row.get("ExitCode", ""), "SubmitTime": row.get("Submit", "")}
            as_shown |= {"StartTime": row.get("Start", ""), "EndTime": row.get("End", "")}
            found.append(_info({**as_shown, "NodeList": row.get("NodeList", "")}))
    return found


def parse_config(text: str) -> dict[str, str]:
    """Read what `scontrol show config` prints: one setting on each line."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _fields(line: str) -> dict[str, str]:
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        found.setdefault(mark[1], line[mark.end() : end].strip())
    return found


def _info(row: Mapping[str, str]) -> JobInfo:
    code, _, number = row.get("ExitCode", "").partition(":")
    array = row.get("ArrayJobId")
    return JobInfo(
        id=f"{array}_{row.get('ArrayTaskId', '')}" if array else row.get("JobId", ""),
        state=row.get("JobState", "").partition(" ")[0].rstrip("+"),
        reason="" if row.get("Reason") in (None, "None", "(null)") else row["Reason"],
        exit_code=_number(code) or 0,
        signal=_number(number) or 0,
        submitted=_time(row.get("SubmitTime", "")),
        started=_time(row.get("StartTime", "")),
        ended=_time(row.get("EndTime", "")),
        nodes="" if row.get("NodeList") in (None, "(null)", "None assigned") else row["NodeList"],
        restarts=_number(row.get("Restarts", "")) or 0,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() else None  # Slurm is asked for seconds; else it says Unknown or None


# -- nodes -------------------------------------------------------------------------------------------------------------


def expand_nodes(text: str) -> list[str]:
    """Write out a list of nodes: `n[1-3,07],m` is n1, n2, n3, n07 and m."""
    return [name for part in _NODES.findall(text) for name in _expand(part)]


def _expand(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part] if part else []
    inner, _, tail = rest.partition("]")
    numbers: list[str] = []
    for span in inner.split(","):
        low, dash, high = span.partition("-")
        numbers += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)] if dash else [low]
    return [f"{head}{number}{end}" for number in numbers for end in (_expand(tail) if tail else [""])]


# -- from facts to a status --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What can be seen of one job; `infos` has one for each group of a heterogeneous job, the first one first."""

    app_id: str
    job: LocalRequest
    infos: Sequence[JobInfo]
    batch: BatchRecord | None
    records: Mapping[tuple[str, int], JobRecord]
    #: The last line of the batch program's log, which tells why it could not start.
    last_line: str = ""


def judge(infos: Sequence[JobInfo], batch: BatchRecord | None) -> AppState:
    """Tell a job's state: Slurm's word, or that of the batch program where Slurm has forgotten the job."""
    ended = AppState[batch.ended] if batch is not None and batch.ended else AppState.UNKNOWN
    if not infos:
        return ended
    state = infos[0].app_state
    # A job that its own nodes ended, without the batch program, is one that they have cancelled.
    return ended if state is AppState.CANCELLED and ended in (AppState.FAILED, AppState.SUCCEEDED) else state


def describe(seen: Seen) -> DescribeAppResponse:
    """Say how a job is doing."""
    state = judge(seen.infos, seen.batch)
    replicas = _replicas(seen, state)
    failed = [each for each in replicas if each.state is AppState.FAILED and each.structured_error_msg != NONE]
    info = seen.infos[0] if seen.infos else None
    batch = seen.batch or BatchRecord()
    starts = [each.started_at for each in replicas if each.started_at is not None]
    return DescribeAppResponse(
        app_id=seen.app_id,
        state=state,
        num_restarts=batch.failures + max(info.restarts if info is not None else 0, batch.requeues),
        msg=_message(seen, state),
        structured_error_msg=min(failed, key=_ended).structured_error_msg if failed else NONE,
        metadata=dict(seen.job.metadata),
        roles_statuses=[
            RoleStatus(role.name, [each for each in replicas if each.role == role.name]) for role in seen.job.role_plans
        ],
        roles=seen.job.roles,
        name=seen.job.name,
        submitted_at=info.submitted if info is not None else None,
        started_at=(info.started if info is not None and state is not AppState.PENDING else None)
        or min(starts, default=None),
        ended_at=((info.ended if info is not None else None) or batch.ended_at) if is_terminal(state) else None,
    )


def describe_array(app_id: str, job: LocalRequest, infos: Sequence[JobInfo]) -> DescribeAppResponse:
    """Say how the runs of an array are doing as a whole; each is a job of its own, too."""
    states = [info.app_state for info in infos]
    order = [AppState.RUNNING, AppState.PENDING, AppState.FAILED, AppState.CANCELLED, AppState.SUCCEEDED]
    counts = {state: states.count(state) for state in order if state in states}
    said = ", ".join(f"{count} {state.name}" for state, count in counts.items())
    example = f"{app_id}_{infos[0].id.partition('_')[2]}"
    return DescribeAppResponse(
        app_id=app_id,
        state=next(iter(counts), AppState.UNKNOWN),
        num_restarts=sum(info.restarts for info in infos),
        msg=f"the runs of this array: {said}; each is a job of its own, as in {example}",
        metadata=dict(job.metadata),
        roles=job.roles,
        name=job.name,
        submitted_at=infos[0].submitted,
    )


def _replicas(seen: Seen, state: AppState) -> list[ReplicaStatus]:
    """Describe every replica for which there is a node, or will be."""
    sizes = seen.batch.sizes if seen.batch is not None and state is not AppState.PENDING else {}
    nodes = {name for info in seen.infos for name in expand_nodes(info.nodes)}
    found = []
    for plan in seen.job.replicas:
        record = seen.records.get((plan.role, plan.id)) if state is not AppState.PENDING else None
        status = cluster.status_of(record) if record is not None else None
        if status is None:
            if plan.role in sizes and plan.id >= sizes[plan.role]:
                continue  # the job got fewer nodes than it would take
            waiting = AppState.PENDING if not is_terminal(state) and state is not AppState.UNKNOWN else state
            cause = "it never reported: see the batch log" if state is AppState.FAILED else ""
            status = cluster.unstarted(plan.role, plan.id, waiting, cause)
        elif is_terminal(state):
            status = _after_the_end(seen, status, state)
        elif nodes and status.hostname not in nodes:
            status = cluster.lost(status, "its node was lost")  # Slurm has taken it away from the job
        found.append(status)
    return found


def _after_the_end(seen: Seen, status: ReplicaStatus, state: AppState) -> ReplicaStatus:
    """Describe a replica of a job that has ended: one that left no last word went down with its node or the job."""
    if state is AppState.CANCELLED:
        ended = cluster.lost(status, "", AppState.CANCELLED)
        # Its supervisor knows only that Slurm told it to end. Slurm tells every process of a step, so a replica may
        # have ended before its supervisor knew why.
        if ended.state is AppState.CANCELLED or ended.exit_code in TOLD_TO_END:
            return replace(ended, state=AppState.CANCELLED, cause="the job was cancelled")
        return ended
    word = seen.infos[0].state if seen.infos else ""
    why = MEANINGS.get(word) if word not in ("COMPLETED", "FAILED") else None
    return cluster.lost(status, f"Slurm ended the job: {why}" if why else "its node was lost")


def _message(seen: Seen, state: AppState) -> str:
    info = seen.infos[0] if seen.infos else None
    batch = seen.batch or BatchRecord()
    if state is AppState.UNKNOWN:
        word = f"Slurm says {info.state}" if info is not None else "Slurm does not know the job any more"
        return f"{word}, and the job left no last word"
    if state is AppState.PENDING and info is not None:
        reason = info.reason.strip("()")
        meaning = MEANINGS.get(reason.partition(",")[0])
        waits = f"waits in the queue: {reason or info.state}{f' ({meaning})' if meaning else ''}"
        return f"{batch.msg}; {waits}" if batch.msg else waits
    if state is AppState.CANCELLED:
        return "the job was cancelled"
    if info is not None and info.state == "SUSPENDED":
        return "Slurm has suspended it"
    if state is not AppState.FAILED:
        return batch.msg
    if batch.ended and info is not None and info.state in ("FAILED", "COMPLETED", "CANCELLED"):
        return batch.msg
    if info is None:
        return batch.msg
    if not batch.starts:
        said = f": {seen.last_line}" if seen.last_line else ""
        return f"the batch program could not start (exit code {info.exit_code}){said}"
    why = MEANINGS.get(info.state) or f"{info.state}, {info.reason or 'without a reason'}"
    return f"Slurm ended the job: {why}"


def _ended(replica: ReplicaStatus) -> float:
    return replica.ended_at or 0.0
