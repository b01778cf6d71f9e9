"""A scheduler whose jobs live in memory, for tests of what is built on schedulers: no process, no file, no waiting.

It keeps the contract of `holdfast.testing.scheduler_contract`. A job is played the moment it is submitted. What a
replica does is read off its command: `echo`, `true`, `false`, `exit N` and `sleep N`, alone or after `sh -c` with `;`
between them and `>&2` behind an `echo`. A replica that sleeps goes on until the job is cancelled or the test ends it
with `MemoryCluster.end`; any other program succeeds without a word.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from holdfast.specs import (
    AppDef,
    AppDryRunInfo,
    AppState,
    CfgVal,
    ReplicaStatus,
    Role,
    RoleStatus,
    is_terminal,
    macros,
    make_app_handle,
    runopts,
)

if TYPE_CHECKING:
    import builtins
    from datetime import datetime

#: What a shell says of a replica that was ended by SIGTERM.
CANCELLED_CODE = -15


@dataclass
class MemoryRequest:
    """The native request: the app, and the id that the job will have."""

    app_id: str
    app: AppDef
    cfg: dict[str, CfgVal] = field(default_factory=dict)


@dataclass
class _Line:
    at: float
    stream: Stream
    text: str


@dataclass
class _Replica:
    status: ReplicaStatus
    lines: list[_Line] = field(default_factory=list)


@dataclass
class _Job:
    request: MemoryRequest
    session: str
    submitted_at: float
    replicas: dict[tuple[str, int], _Replica]
    cancelled: bool = False

    @property
    def state(self) -> AppState:
        states = [replica.status.state for replica in self.replicas.values()]
        if AppState.RUNNING in states:
            return AppState.RUNNING
        if AppState.FAILED in states:
            return AppState.FAILED
        return AppState.CANCELLED if self.cancelled else AppState.SUCCEEDED


class MemoryCluster:
    """The jobs that several `MemoryScheduler`s see, and what a test may do to them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._count = 0

    def say(self, app_id: str, line: str, role: str, k: int = 0, stream: Stream = Stream.STDOUT) -> None:
        """Have a replica write one line."""
        with self.changed:
            self._find(app_id).replicas[role, k].lines.append(_Line(time.time(), stream, line))
            self.changed.notify_all()

    def end(self, app_id: str, exit_code: int = 0, role: str | None = None, k: int | None = None) -> None:
        """Let the sleeping replicas of a job, or those of one role or number, exit with this code."""
        with self.changed:
            for (name, number), replica in self._find(app_id).replicas.items():
                if role in (None, name) and k in (None, number) and replica.status.state is AppState.RUNNING:
                    _end(replica, exit_code)
            self.changed.notify_all()

    def next_id(self, name: str) -> str:
        """Return an id that no job has had yet."""
        with self.changed:
            self._count += 1
            return f"{name}-{self._count}"

    def add(self, session: str, request: MemoryRequest) -> None:
        """Take in a job and play it as far as it goes."""
        replicas = {
            (role.name, k): _Replica(ReplicaStatus(k, AppState.RUNNING, role.name, "localhost", started_at=time.time()))
            for role in request.app.roles
            for k in range(role.num_replicas)
        }
        with self.changed:
            if (session, request.app_id) in self._jobs:
                raise UsageError(f"the job {request.app_id} has already been submitted: make a new request")
            self._jobs[session, request.app_id] = _Job(request, session, time.time(), replicas)
            for role in request.app.roles:
                for k in range(role.num_replicas):
                    values = macros.Values("/", request.app_id, str(k), "MEMORY_RANK0_HOST")
                    _play(values.apply(role), replicas[role.name, k])
            self.changed.notify_all()

    def get(self, session: str, app_id: str) -> _Job | None:
        """Return a job of this session, or None."""
        with self.changed:
            return self._jobs.get((session, app_id))

    def jobs(self, session: str) -> list[_Job]:
        """Return the jobs of this session, the oldest first."""
        with self.changed:
            return [job for job in self._jobs.values() if job.session == session]

    def cancel(self, session: str, app_id: str) -> None:
        """End what runs of a job."""
        with self.changed:
            job = self._jobs[session, app_id]
            for replica in job.replicas.values():
                if replica.status.state is AppState.RUNNING:
                    job.cancelled = True
                    _end(replica, CANCELLED_CODE, AppState.CANCELLED)
            self.changed.notify_all()

    def drop(self, session: str, app_id: str) -> None:
        """Forget a job."""
        with self.changed:
            self._jobs.pop((session, app_id), None)
            self.changed.notify_all()

    def _find(self, app_id: str) -> _Job:
        return next(job for (_, known), job in self._jobs.items() if known == app_id)


class MemoryScheduler(Scheduler[MemoryRequest]):
    """Keeps the whole interface over a `MemoryCluster`; made with the same one, two of them see the same jobs."""

    def __init__(self, session_name: str, cluster: MemoryCluster | None = None, backend: str = "memory") -> None:
        super().__init__(backend, session_name)
        self.cluster = cluster if cluster is not None else MemoryCluster()
        self.closed = False

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("queue", type_=str, help="where the job waits", default="default")
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Anything runs here."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[MemoryRequest]:
        return AppDryRunInfo(MemoryRequest(self.cluster.next_id(app.name), app, dict(cfg)), repr)

    def schedule(self, dryrun_info: AppDryRunInfo[MemoryRequest]) -> str:
        """Submit the request and play the job."""
        self.cluster.add(self.session_name, dryrun_info.request)
        return dryrun_info.request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing."""
        job = self.cluster.get(self.session_name, app_id)
        if job is None:
            return None
        roles = job.request.app.roles
        failed = [each.status for each in job.replicas.values() if each.status.state is AppState.FAILED]
        return DescribeAppResponse(
            app_id=app_id,
            state=job.state,
            num_restarts=0,
            msg=failed[0].cause if failed else "",
            metadata=dict(job.request.app.metadata),
            roles_statuses=[
                RoleStatus(role.name, [job.replicas[role.name, k].status for k in range(role.num_replicas)])
                for role in roles
            ],
            roles=roles,
            name=job.request.app.name,
            submitted_at=job.submitted_at,
            started_at=job.submitted_at,
            ended_at=job.submitted_at if is_terminal(job.state) else None,
        )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session."""
        del cfg
        return [
            ListAppResponse(
                job.request.app_id,
                job.state,
                make_app_handle(self.backend, self.session_name, job.request.app_id),
                job.request.app.name,
                job.submitted_at,
            )
            for job in self.cluster.jobs(self.session_name)
        ]

    def _cancel_existing(self, app_id: str) -> None:
        self.cluster.cancel(self.session_name, app_id)

    def _delete_existing(self, app_id: str) -> None:
        self.cluster.cancel(self.session_name, app_id)
        self.cluster.drop(self.session_name, app_id)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterator[str]:
        """Yield the lines of one replica."""
        job = self.cluster.get(self.session_name, app_id)
        if job is None:
            raise UsageError(f"there is no job {app_id}")
        replica = job.replicas.get((role_name, k))
        if replica is None:
            raise UsageError(f"the job {app_id} has no replica {role_name}/{k}")
        first = since.timestamp() if since else float("-inf")
        last = until.timestamp() if until else float("inf")
        wanted = streams or Stream.COMBINED
        lines = self._follow(app_id, job, replica) if should_tail else iter([*replica.lines])
        return (
            line.text
            for line in lines
            if first <= line.at <= last
            and wanted in (Stream.COMBINED, line.stream)
            and (regex is None or re.search(regex, line.text))
        )

    def _follow(self, app_id: str, job: _Job, replica: _Replica) -> Iterator[_Line]:
        given: list[_Line] = []
        while True:
            with self.cluster.changed:
                self.cluster.changed.wait_for(
                    lambda: len(replica.lines) > len(given) or self._is_over(app_id, job), timeout=None
                )
                fresh = replica.lines[len(given) :]
            if not fresh:
                return
            yield from fresh
            given.extend(fresh)

    def _is_over(self, app_id: str, job: _Job) -> bool:
        return is_terminal(job.state) or self.cluster.get(self.session_name, app_id) is not job

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Return when the job has ended, or is gone, or the time is over."""
        job = self.cluster.get(self.session_name, app_id)
        if job is not None:
            with self.cluster.changed:
                self.cluster.changed.wait_for(lambda: self._is_over(app_id, job), timeout)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


def create_scheduler(session_name: str, **kwargs: object) -> MemoryScheduler:
    """Make a scheduler with a cluster of its own, as an entry point would."""
    del kwargs
    return MemoryScheduler(session_name)


def _play(role: Role, replica: _Replica) -> None:
    """Do what the replica's command says, until it ends or sleeps."""
    argv = [role.entrypoint, *role.args]
    commands = [argv]
    if argv[0].rpartition("/")[2] in ("sh", "bash") and "-c" in argv[:-1]:
        commands = [shlex.split(part) for part in argv[argv.index("-c") + 1].split(";")]
    for command in filter(None, commands):
        stream = Stream.STDOUT
        if command[-1] == ">&2":
            stream, command = Stream.STDERR, command[:-1]
        match command[0].rpartition("/")[2]:
            case "echo":
                replica.lines.append(_Line(time.time(), stream, " ".join(command[1:])))
            case "sleep":
                return
            case "exit":
                _end(replica, int(command[1]))
                return
            case "false":
                _end(replica, 1)
                return
    _end(replica, 0)


def _end(replica: _Replica, exit_code: int, state: AppState | None = None) -> None:
    status = replica.status
    status.state = state or (AppState.SUCCEEDED if exit_code == 0 else AppState.FAILED)
    status.exit_code, status.ended_at = exit_code, time.time()
    status.cause, status.reason = "" if exit_code == 0 else f"exited with code {exit_code}", ""
