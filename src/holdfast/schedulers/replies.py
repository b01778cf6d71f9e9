"""What schedulers answer, as data. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from holdfast.specs.app import NONE, Role
from holdfast.specs.states import AppState, RoleStatus


class Stream(enum.StrEnum):
    """Which output of a replica."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"


@dataclass
class DescribeAppResponse:
    """What a scheduler knows of one job."""

    app_id: str = "<NOT_SET>"
    state: AppState = AppState.UNSUBMITTED
    num_restarts: int = -1
    msg: str = ""
    structured_error_msg: str = NONE
    ui_url: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    roles_statuses: list[RoleStatus] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    name: str = ""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None


@dataclass
class ListAppResponse:
    """One line of a scheduler's list of jobs."""

    app_id: str
    state: AppState
    app_handle: str = "<NOT_SET>"
    name: str = ""
    submitted_at: float | None = None
