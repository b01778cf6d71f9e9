"""The status of a job, as data. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.errors import AppStatusError
from holdfast.specs.app import NONE


class AppState(enum.IntEnum):
    """The state of a job, or of one replica."""

    UNSUBMITTED = 0
    SUBMITTED = 1
    PENDING = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    UNKNOWN = 7

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name} ({self.value})"


ReplicaState = AppState

#: Fields that a status and a replica's status have in TorchX; the others are ours.
_TORCHX_FIELDS = frozenset(
    {"state", "num_restarts", "msg", "structured_error_msg", "ui_url", "roles", "id", "role", "hostname"}
)

TERMINAL_STATES = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})
STARTED_STATES = TERMINAL_STATES | {AppState.RUNNING}


def is_terminal(state: AppState) -> bool:
    """Whether nothing more happens in this state."""
    return state in TERMINAL_STATES


def is_started(state: AppState) -> bool:
    """Whether a job in this state runs or has run."""
    return state in STARTED_STATES


@dataclass
class ReplicaStatus:
    """One replica: its state, where it ran, and how it ended."""

    id: int
    state: AppState
    role: str
    hostname: str = ""
    structured_error_msg: str = NONE
    hostaddr: str = ""
    exit_code: int | None = None
    #: Wall clock of the machine it ran on; None if it did not happen or is not known.
    started_at: float | None = None
    ended_at: float | None = None
    #: Why it ended, in a sentence; empty if it succeeded.
    cause: str = ""
    #: The part of the cause that the exit code does not say; None if the scheduler gives only `cause`.
    reason: str | None = None
    #: The last line that it wrote, if it left no error.
    last_line: str = ""
    #: How often it was started again.
    restarts: int = 0

    @property
    def sentence(self) -> str:
        """The status in one line."""
        words = [f"{self.role}/{self.id} {self.state.name}{f' on {self.hostname}' if self.hostname else ''}"]
        if self.restarts:
            words.append(f"restarts: {self.restarts}")
        if self.started_at is not None and self.ended_at is not None:
            words.append(f"ran {_span(self.ended_at - self.started_at)}")
        why = self.cause
        if self.exit_code is not None and (self.exit_code >= 0 or self.reason is None):
            words.append(f"exit code {self.exit_code}")
            if self.reason is not None:
                why = self.reason or (f"its last line was: {self.last_line}" if self.last_line else "")
        return ", ".join(words) + (f": {why}" if why else "")


@dataclass
class RoleStatus:
    """The replicas of one role."""

    role: str
    replicas: list[ReplicaStatus] = field(default_factory=list)


@dataclass
class AppStatus:
    """The status of a job, and of each of its replicas."""

    state: AppState
    num_restarts: int = 0
    msg: str = ""
    structured_error_msg: str = NONE
    ui_url: str | None = None
    roles: list[RoleStatus] = field(default_factory=list)
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None

    def is_terminal(self) -> bool:
        """Whether the job has ended."""
        return is_terminal(self.state)

    def replicas(self, filter_roles: Sequence[str] | None = None) -> list[ReplicaStatus]:
        """All replicas, or those of some roles."""
        return [
            replica for role in self.roles if not filter_roles or role.role in filter_roles for replica in role.replicas
        ]

    def failed_replicas(self) -> list[ReplicaStatus]:
        """The replicas that failed, the first to fail first."""
        failed = [replica for replica in self.replicas() if replica.state is AppState.FAILED]
        return sorted(failed, key=lambda replica: replica.ended_at or 0.0)

    @property
    def exit_code(self) -> int:
        """The exit code for a command that waits for the job."""
        if self.state is AppState.SUCCEEDED:
            return 0
        codes = [replica.exit_code for replica in self.failed_replicas() if replica.exit_code]
        first = codes[0] if codes else 1
        return 128 - first if first < 0 else first

    def raise_for_status(self) -> None:
        """Raise `AppStatusError` unless the job has succeeded."""
        if self.state is not AppState.SUCCEEDED:
            raise AppStatusError(self, f"the job is {self.state.name}{f': {self.msg}' if self.msg else ''}")

    def to_json(self, filter_roles: Sequence[str] | None = None) -> dict[str, Any]:
        """Describe the status as plain data, states by name."""
        data = asdict(self)
        data["state"] = self.state.name
        data["roles"] = [role for role in data["roles"] if not filter_roles or role["role"] in filter_roles]
        for role in data["roles"]:
            for replica in role["replicas"]:
                replica["state"] = AppState(replica["state"]).name
        return data

    def format(self, filter_roles: Sequence[str] | None = None) -> str:
        """Describe the status as text, one line for each replica."""
        lines = [f"State: {self.state.name}; restarts: {self.num_restarts}"]
        if self.msg:
            lines.append(f"Message: {self.msg}")
        if self.ui_url:
            lines.append(f"UI: {self.ui_url}")
        lines += [f"  {replica.sentence}" for replica in self.replicas(filter_roles)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        from holdfast.specs.outline import outline  # few need it

        roles = [_role_shown(role) for role in self.roles]
        error = _unfolded(self.structured_error_msg)
        data = {**asdict(self), "state": repr(self.state), "roles": roles, "structured_error_msg": error}
        return "\n".join(["AppStatus:", *outline(_said(data, AppStatus), "  "), ""])


def _role_shown(role: RoleStatus) -> dict[str, Any]:
    replicas = [_said({**asdict(each), "state": repr(each.state)}, ReplicaStatus) for each in role.replicas]
    return {"replicas": replicas, "role": role.role}


def _unfolded(text: str) -> Any:
    """Parse a text that is a JSON object; any other text stays as it is."""
    import json  # few need it

    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def _said(data: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Sort by name, and leave out fields of ours that are not filled in."""
    fields = kind.__dataclass_fields__
    return {name: data[name] for name in sorted(data) if name in _TORCHX_FIELDS or data[name] != fields[name].default}


def _span(seconds: float) -> str:
    """Write a duration for people."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {round(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"
