"""The records of a local job, and how they are read. Pure.

A job has two records. `job.json` is the request as it was submitted and never changes. `state.json` is how the job is
doing: its supervisor replaces it as a whole. Both carry a version; a reader refuses only what is newer than itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.specs.app import RetryPolicy, Role
from holdfast.specs.serialize import role_from_json, role_to_json
from holdfast.specs.states import AppState
from holdfast.typed import learned

RECORD_VERSION = 1


@dataclass
class ReplicaPlan:
    """The plan of one replica: its command, environment, folder and GPUs."""

    role: str
    id: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log_dir: str
    gpus: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How people call it."""
        return f"{self.role}/{self.id}"


@dataclass
class RolePlan:
    """What a role says about retries and about how many of its replicas must live."""

    name: str
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    min_replicas: int | None = None


@dataclass
class Shipment:
    """Code that is copied when the job is submitted."""

    #: Its name below `workspace/` in the job's folder.
    folder: str
    #: Where it comes from, and where each source goes below the folder.
    roots: dict[str, str]


@dataclass
class LocalRequest:
    """The native request of the local scheduler; it may be changed until it is submitted."""

    app_id: str
    name: str
    session: str
    replicas: list[ReplicaPlan]
    role_plans: list[RolePlan]
    #: How long a replica has between SIGTERM and SIGKILL.
    cancel_grace_s: float = 10.0
    #: The app as it was given, for `describe`.
    roles: list[Role] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    #: What is copied when the job is submitted; the copies are the job's own, and go with it.
    shipments: list[Shipment] = field(default_factory=list)
    #: Whether the job needs a port of this machine, at which its replicas meet.
    needs_port: bool = False
    #: How many finished jobs are kept once this one has ended; None for what the environment says.
    keep_jobs: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Describe the request as plain data."""
        data: dict[str, Any] = msgspec.to_builtins(replace(self, roles=[]))
        return {**data, "version": RECORD_VERSION, "roles": [role_to_json(role) for role in self.roles]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LocalRequest:
        """Read what `to_json` wrote; fields that are not known here are left out. Raises `msgspec.ValidationError`."""
        check_version(data)
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        known |= {key: msgspec.convert(data.get(key, []), learned(kind)) for key, kind in _NESTED.items()}
        return cls(**{**known, "roles": [role_from_json(role) for role in data.get("roles", ())]})


#: Fields of the request that hold records of their own. Roles are written by their own package.
_NESTED: dict[str, type[Any]] = {
    "replicas": list[ReplicaPlan],
    "role_plans": list[RolePlan],
    "shipments": list[Shipment],
}


class Supervisor(msgspec.Struct, frozen=True):
    """The process that supervises a job; `start` tells it from a later one with the same pid."""

    pid: int
    start: int = 0
    boot_id: str = ""


class ReplicaRecord(msgspec.Struct, kw_only=True):
    """How one replica is doing. `state` is the name of an `AppState`, which people can read in the file."""

    role: str
    id: int
    state: str = AppState.PENDING.name
    pid: int | None = None
    exit_code: int | None = None
    cause: str = ""
    #: Why it ended, beyond its exit code; None if nothing is known of that.
    reason: str | None = None
    last_line: str = ""
    error: str = ""  #: what its error file holds
    restarts: int = 0
    started_at: float | None = None
    ended_at: float | None = None


class Progress(msgspec.Struct, kw_only=True):
    """What the job machine decides: how the job and its replicas are doing."""

    state: str = AppState.SUBMITTED.name
    msg: str = ""
    num_restarts: int = 0
    replicas: list[ReplicaRecord] = []


class JobRecord(Progress, kw_only=True):
    """How a job is doing, as its supervisor writes it down; times are the wall clock, for people."""

    version: int = RECORD_VERSION
    name: str = ""
    host: str = ""
    boot_id: str = ""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    #: None until the supervisor has begun.
    supervisor: Supervisor | None = None
    #: Trouble with the logs.
    notes: list[str] = []

    def to_json(self) -> dict[str, Any]:
        """Describe the record as plain data."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobRecord:
        """Read what `to_json` wrote, of older versions too. Raises `msgspec.ValidationError`."""
        check_version(data)
        return msgspec.convert(data, learned(cls))


@dataclass(frozen=True, slots=True)
class Life:
    """What the machine shows of a job besides its records; read *before* the state.

    In this order a supervisor that is seen dead has written all that it ever will.
    """

    alive: bool
    same_host: bool
    same_boot: bool
    booted_at: str  #: when this machine was started, for people
    cancel_asked: bool


def check_version(data: Mapping[str, Any]) -> None:
    """Refuse a record that a newer version wrote."""
    version = data.get("version")
    if not isinstance(version, int) or version > RECORD_VERSION:
        raise UsageError(
            f"this job was submitted by a newer holdfast (its record has version {version!r}, known here is "
            f"{RECORD_VERSION}): use that one to look at it"
        )
