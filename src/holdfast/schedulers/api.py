"""The interface of a scheduler: how an app is turned into a native request, submitted, watched and ended.

A plugin fills in the abstract methods and registers a factory `create_scheduler(session_name, **kwargs)` as an entry
point of the group `holdfast.schedulers` (or `torchx.schedulers`). `holdfast.testing` has a contract suite for it.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from holdfast.errors import UsageError
from holdfast.specs import (
    NONE,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    AppState,
    CfgVal,
    Role,
    RoleStatus,
    runopts,
)

T = TypeVar("T")


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


class Scheduler(ABC, Generic[T]):
    """Runs jobs somewhere; `T` is the type of its native request."""

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name

    # -- what a scheduler of your own fills in -----------------------------------------------------------------------

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Make the native request; nothing may happen yet."""

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[T]) -> str:
        """Submit the request and return the job's id."""

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing, or None where there is none of that id."""

    @abstractmethod
    def list(self) -> list[ListAppResponse]:
        """List the jobs that this scheduler knows."""

    @abstractmethod
    def _cancel_existing(self, app_id: str) -> None:
        """End a job that exists; no error where it has ended already."""

    # -- what may be changed -------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        """The options that a user may set for one run."""
        return runopts()

    def _delete_existing(self, app_id: str) -> None:
        """Forget a job and what it has left behind; by default it is only cancelled."""
        self._cancel_existing(app_id)

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
    ) -> Iterable[str]:
        """Yield the lines of one replica's output, oldest first; with `should_tail` until it has ended."""
        raise NotImplementedError(f"{type(self).__qualname__} does not give logs")

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Refuse what cannot run here; by default a role that does not say what it needs."""
        del scheduler, cfg
        for role in app.roles:
            if role.resource == NULL_RESOURCE:
                raise UsageError(f"the role '{role.name}' does not say what resources it needs")

    def close(self) -> None:
        """Give back what the scheduler holds; jobs go on."""

    # -- what every scheduler does ---------------------------------------------------------------------------------

    def submit(self, app: AppDef, cfg: Mapping[str, CfgVal], workspace: str | None = None) -> str:
        """Make the request and submit it; returns the job's id."""
        if workspace is not None and app.roles:
            app.roles[0].workspace = workspace
        return self.schedule(self.submit_dryrun(app, cfg))

    def submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Make the request with all options filled in, and let each role change it."""
        resolved = self.run_opts().resolve(cfg)
        info = self._submit_dryrun(app, resolved)
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        info._app, info._cfg, info._scheduler = app, dict(resolved), self.backend
        return info

    def run_opts(self) -> runopts:
        """The options that a user may set for one run."""
        return self._run_opts()

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return self.describe(app_id) is not None

    def cancel(self, app_id: str) -> None:
        """End a job; nothing happens where there is none."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def delete(self, app_id: str) -> None:
        """Forget a job; nothing happens where there is none."""
        if self.exists(app_id):
            self._delete_existing(app_id)

    def __enter__(self) -> Scheduler[T]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
