"""What the schedulers of clusters share: a job whose replicas run on several machines, one on each. Pure.

Such a job is written down as a request of the local scheduler that holds every replica. What only the machine of a
replica knows stands in it as a placeholder, such as `<job folder>`, and a dry run shows it like that. On its machine a
replica is a local job of its own: `portion` cuts it out of the whole, `fill` puts the values in place, and the local
supervisor runs it. So logs, error files, retries of one replica and the end of its processes are the same everywhere.

One meaning of `max_retries` on all schedulers: how often a failure is answered by another start, of the replica alone
or of the whole app, as the retry policy says. A start after a preemption, a time limit or a lost machine is no retry.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import UsageError
from holdfast.schedulers.local.parse import replica_status
from holdfast.schedulers.local.record import JobRecord, LocalRequest, ReplicaRecord, RolePlan
from holdfast.schedulers.local.render import PORT_VARIABLE, Surroundings, render
from holdfast.specs.app import AppDef, RetryPolicy
from holdfast.specs.cfg import CfgVal
from holdfast.specs.states import AppState, ReplicaStatus, is_terminal

#: What a machine fills in: the job's folder there, the job's id, where the first replica is, a port there, its PATH.
JOB_FOLDER, JOB_ID, FIRST_HOST, PORT, PATH = "<job folder>", "<job id>", "<first host>", "<port>", "<PATH>"
#: Holds the job's folder, for programs of the job.
FOLDER_VARIABLE = "HOLDFAST_JOB_FOLDER"
#: The folder in a job's own that goes first in PATH: its `python` is the one that has Holdfast.
BIN = "bin"


@dataclass(frozen=True)
class Site:
    """What the request depends on besides the app: which scheduler, and where replicas run."""

    backend: str
    session: str
    #: The job's id where it is known before the job is submitted.
    app_id: str
    #: The folder in which replicas run, by role.
    cwds: Mapping[str, str]


def plan(app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> LocalRequest:
    """Make the request for a whole app."""
    around = Surroundings(
        backend=site.backend,
        session=site.session,
        app_id=site.app_id,
        cwds=site.cwds,
        log_root=f"{JOB_FOLDER}/logs",
        environ={"PATH": PATH},
        python_folder=f"{JOB_FOLDER}/{BIN}",
        first_host=FIRST_HOST,
        env={FOLDER_VARIABLE: JOB_FOLDER, PORT_VARIABLE: PORT},
    )
    # Each machine's GPUs are those that its replica may use.
    request, _ = render(app, {**cfg, "auto_set_cuda_visible_devices": False}, around)
    return replace(request, needs_port=False)


def portion(request: LocalRequest, role: str, number: int) -> LocalRequest:
    """Cut one replica out of a request, as a job of its own; only retries of that replica alone are its matter."""
    replicas = [each for each in request.replicas if (each.role, each.id) == (role, number)]
    if not replicas:
        raise UsageError(f"the job {request.app_id} has no replica {role}/{number}")
    found = next(each for each in request.role_plans if each.name == role)
    retries = found.max_retries if found.retry_policy is RetryPolicy.REPLICA else 0
    return replace(
        request,
        replicas=replicas,
        role_plans=[RolePlan(role, retries, RetryPolicy.REPLICA)],
        roles=[each for each in request.roles if each.name == role],
        shipments=[],
    )


def fill(request: LocalRequest, values: Mapping[str, str]) -> LocalRequest:
    """Put a machine's values in place of the placeholders."""

    def filled(text: str) -> str:
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        return text

    replicas = [
        replace(
            each,
            argv=[filled(word) for word in each.argv],
            env={name: filled(value) for name, value in each.env.items()},
            cwd=filled(each.cwd),
            log_dir=filled(each.log_dir),
        )
        for each in request.replicas
    ]
    return replace(request, app_id=filled(request.app_id), replicas=replicas)


def python_script(python: str, packages: str = "") -> str:
    """Return the `python` of a job's own folder: a script, because a link would lose a virtual environment."""
    found = f'PYTHONPATH={shlex.quote(packages)}"${{PYTHONPATH:+:$PYTHONPATH}}" ' if packages else ""
    return f'#!/bin/sh\n{found}exec {shlex.quote(python)} "$@"\n'


def retries(request: LocalRequest) -> int:
    """Return how often the whole app may be started again."""
    shared = [each.max_retries for each in request.role_plans if each.retry_policy is not RetryPolicy.REPLICA]
    return max(shared, default=0)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended as a whole, and what to say about it."""

    state: AppState
    msg: str
    exit_code: int


def conclude(plans: Sequence[RolePlan], replicas: Sequence[ReplicaStatus]) -> Ended:
    """Say how a job ended, of which no replica runs any more.

    Every replica must have succeeded; where a role says how many are enough, so many of it.
    """
    failed = sorted((each for each in replicas if each.state is AppState.FAILED), key=lambda each: each.ended_at or 0.0)
    others = [each for each in replicas if each.state not in (AppState.FAILED, AppState.SUCCEEDED)]
    for role in plans:
        mine = [each for each in replicas if each.role == role.name]
        enough = len(mine) if role.min_replicas is None else role.min_replicas
        if sum(each.state is AppState.SUCCEEDED for each in mine) >= max(enough, 1):
            continue
        first = next((each for each in failed if each.role == role.name), None) or next(iter(failed or others), None)
        if first is None:
            return Ended(AppState.FAILED, f"no replica of '{role.name}' ever ran", 1)
        code = first.exit_code or 1
        return Ended(AppState.FAILED, _story(first), 128 - code if code < 0 else code)
    lost = [f"{_story(each)}; the job went on without it" for each in failed]
    return Ended(AppState.SUCCEEDED, "; ".join(lost), 0)


def _story(replica: ReplicaStatus) -> str:
    where = f" on {replica.hostname}" if replica.hostname else ""
    return f"{replica.role}/{replica.id}{where} failed: {replica.cause or 'no cause is known'}"


def status_of(record: JobRecord) -> ReplicaStatus | None:
    """Return how the one replica of a machine's own job is doing; None where it was not written down yet."""
    return next((replica_status(each, record.host) for each in record.replicas), None)


def lost(status: ReplicaStatus, why: str, state: AppState = AppState.FAILED) -> ReplicaStatus:
    """Say of a replica whose last word is that it runs that it has ended: nothing of its job is left."""
    return status if is_terminal(status.state) else replace(status, state=state, cause=why, reason=None)


def unstarted(role: str, number: int, state: AppState, cause: str = "") -> ReplicaStatus:
    """Describe a replica of which nothing was heard yet."""
    return replica_status(ReplicaRecord(role=role, id=number, state=state.name, cause=cause), "")
