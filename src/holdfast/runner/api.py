"""The runner: one interface to every scheduler."""

from __future__ import annotations

import copy
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import JobTimeoutError, UnavailableError, UsageError
from holdfast.quantities import to_seconds
from holdfast.runner.check import check_app
from holdfast.runner.trackers import tracker_variables
from holdfast.schedulers.api import list_jobs, read_log, validate, wait_news
from holdfast.specs import (
    AppDef,
    AppDryRunInfo,
    AppHandle,
    CfgVal,
    ParsedAppHandle,
    UnknownAppError,
    UnknownSchedulerError,
    macros,
    make_app_handle,
    parse_app_handle,
    runopts,
)

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from holdfast.schedulers import ListAppResponse, LogQuery, Scheduler, Stream
    from holdfast.specs import AppStatus

#: What the command line calls its session.
SESSION = "holdfast"
#: The first wait of `Runner.wait`, and how much longer each next one is.
FIRST_POLL_S, POLL_GROWTH = 0.02, 1.5
#: How many of the apps that it has submitted a runner remembers.
APPS_KEPT = 1000

SchedulerFactory = Callable[..., "Scheduler[Any]"]
Cfg = Mapping[str, CfgVal]
_list = list  # inside the class the name belongs to the method


class Runner:
    """Dry-runs, submits, watches and ends jobs on any scheduler; closes the schedulers when it is closed.

    The caller's `AppDef` is never changed. Schedulers are made when they are first used; without `scheduler_factories`
    they are those that are installed. `component_defaults` are values for arguments of components, by component name.
    """

    def __init__(
        self,
        name: str = SESSION,
        scheduler_factories: Mapping[str, SchedulerFactory] | None = None,
        component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
        scheduler_params: Mapping[str, object] | None = None,
    ) -> None:
        self._name = name
        self._factories = scheduler_factories
        self._component_defaults = component_defaults or {}
        self._params: dict[str, object] = {**_params_from_environment(), **(scheduler_params or {})}
        self._schedulers: dict[str, Scheduler[Any]] = {}
        #: What this runner has submitted; for schedulers that do not remember the roles of their jobs.
        self._apps: dict[AppHandle, AppDef] = {}
        self._making = threading.Lock()

    def name(self) -> str:
        """Return the session, which is part of every handle."""
        return self._name

    # -- from app to job -------------------------------------------------------------------------------------------

    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Cfg | None = None,
        workspace: str | Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
    ) -> AppHandle:
        """Submit an app and return the job's handle."""
        return self.schedule(self.dryrun(app, scheduler, cfg, workspace, parent_run_id))

    def dryrun(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Cfg | None = None,
        workspace: str | Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Make the scheduler's own request for an app and return it without submitting it."""
        check_app(app)
        ours = copy.deepcopy(app)
        for role in ours.roles:
            if workspace and role.workspace is None:
                role.workspace = workspace if isinstance(workspace, str) else dict(workspace)
        self._label(ours, scheduler, parent_run_id)
        return self._make_request(ours, scheduler, cfg)

    def _label(self, app: AppDef, scheduler: str, parent_run_id: str | None) -> None:
        """Give the processes of an app their job's id, its parent and their trackers, as variables."""
        # The id is known only to the scheduler, which puts it in place of the macro.
        handle = make_app_handle(scheduler, self._name, macros.app_id)
        trackers = tracker_variables(os.environ)
        for role in app.roles:
            role.env = {**trackers, **role.env, "HOLDFAST_JOB_ID": handle, "TORCHX_JOB_ID": handle}
            if parent_run_id:
                role.env |= {"HOLDFAST_PARENT_RUN_ID": parent_run_id, "TORCHX_PARENT_RUN_ID": parent_run_id}

    def _make_request(self, app: AppDef, scheduler: str, cfg: Cfg | None) -> AppDryRunInfo[Any]:
        """Have the scheduler build the workspaces, check the app and make its request."""
        backend = self._scheduler(scheduler)
        options = backend.run_opts().resolve(cfg or {})
        if any(role.workspace for role in app.roles):
            _build_workspaces(backend, scheduler, app, options)
        validate(backend, app, options)
        info = backend.submit_dryrun(app, options)
        info._scheduler = scheduler
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> AppHandle:
        """Submit what `dryrun` returned, changed or not, and return the job's handle."""
        scheduler = dryrun_info._scheduler
        if scheduler is None:
            raise UsageError("this request does not say which scheduler it is for: take it from `Runner.dryrun`")
        app_id = self._scheduler(scheduler).schedule(dryrun_info)
        handle = make_app_handle(scheduler, self._name, app_id)
        if dryrun_info.app is not None:
            self._apps[handle] = dryrun_info.app
            while len(self._apps) > APPS_KEPT:
                del self._apps[next(iter(self._apps))]
        return handle

    def run_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any],
        scheduler: str,
        cfg: Cfg | None = None,
        workspace: str | Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
    ) -> AppHandle:
        """Call a component with its arguments, as on a command line or by name, and submit its app."""
        return self.schedule(self.dryrun_component(component, component_args, scheduler, cfg, workspace, parent_run_id))

    def dryrun_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any],
        scheduler: str,
        cfg: Cfg | None = None,
        workspace: str | Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Call a component with its arguments and make the request for its app, without submitting it."""
        return self.dryrun(self.make_app(component, component_args), scheduler, cfg, workspace, parent_run_id)

    def make_app(self, component: str, component_args: Sequence[str] | Mapping[str, Any]) -> AppDef:
        """Call a component with its arguments, and return its app."""
        from holdfast.components.arguments import materialize_appdef
        from holdfast.components.finder import get_component

        defaults = self._component_defaults.get(component)
        return materialize_appdef(get_component(component).fn, component_args, defaults, name=component)

    # -- from job to what became of it -----------------------------------------------------------------------------

    def status(self, app_handle: AppHandle) -> AppStatus | None:
        """Return the status of a job; None if there is no such job any more."""
        from holdfast.specs.states import AppStatus

        where, scheduler = self._find(app_handle)
        found = scheduler.describe(where.app_id)
        if found is None:
            return None
        return AppStatus(
            state=found.state,
            num_restarts=max(found.num_restarts, 0),
            msg=found.msg,
            structured_error_msg=found.structured_error_msg,
            ui_url=found.ui_url,
            roles=found.roles_statuses,
            submitted_at=getattr(found, "submitted_at", None),
            started_at=getattr(found, "started_at", None),
            ended_at=getattr(found, "ended_at", None),
        )

    def wait(
        self, app_handle: AppHandle, wait_interval: float = 1.0, timeout: float | timedelta | None = None
    ) -> AppStatus | None:
        """Wait until a job has ended and return its status; None if the job is gone.

        It polls often at first and then less and less, every `wait_interval` seconds in the end. Raises
        `JobTimeoutError` after `timeout` (seconds or a timedelta).
        """
        where, scheduler = self._find(app_handle)
        timeout_s = None if timeout is None else to_seconds(timeout)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause = min(FIRST_POLL_S, wait_interval)
        while True:
            status = self.status(app_handle)
            if status is None or status.is_terminal():
                return status
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise JobTimeoutError(f"{app_handle} is still {status.state.name} after {timeout_s:g} s; it goes on")
            wait_news(scheduler, where.app_id, pause if left is None else min(pause, left))
            pause = min(pause * POLL_GROWTH, wait_interval)

    def cancel(self, app_handle: AppHandle) -> None:
        """End a job; does nothing if it has ended or is gone."""
        where, scheduler = self._find(app_handle)
        scheduler.cancel(where.app_id)

    def kill(self, app_handle: AppHandle) -> bool:
        """Kill a job at once; if its scheduler can only cancel, cancel it and return False."""
        where, scheduler = self._find(app_handle)
        kill = getattr(scheduler, "kill", None)
        (kill or scheduler.cancel)(where.app_id)
        return kill is not None

    def stop(self, app_handle: AppHandle) -> None:
        """End a job; the old name of `cancel`."""
        warnings.warn("Runner.stop is now called Runner.cancel", DeprecationWarning, stacklevel=2)
        self.cancel(app_handle)

    def delete(self, app_handle: AppHandle) -> None:
        """Delete a job and its files; a running one is ended first."""
        where, scheduler = self._find(app_handle)
        scheduler.delete(where.app_id)

    def describe(self, app_handle: AppHandle) -> AppDef | None:
        """Return the app as the scheduler remembers it; None if there is no such job."""
        where, scheduler = self._find(app_handle)
        found = scheduler.describe(where.app_id)
        if found is None:
            return None
        if not found.roles and app_handle in self._apps:
            return copy.deepcopy(self._apps[app_handle])
        metadata = getattr(found, "metadata", {})  # which the answers of older plugins do not have
        return AppDef(name=getattr(found, "name", "") or where.app_id, roles=found.roles, metadata=metadata)

    def list(self, scheduler: str, cfg: Cfg | None = None) -> _list[ListAppResponse]:
        """List the jobs that a scheduler knows, each with its handle."""
        found = list_jobs(self._scheduler(scheduler), cfg)
        for app in found:
            app.app_handle = make_app_handle(scheduler, self._name, app.app_id)
        return found

    def log_lines(
        self,
        app_handle: AppHandle,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yield the lines that one replica wrote; with `should_tail` until it has ended."""
        where, scheduler = self._find_log(app_handle, regex)
        return scheduler.log_iter(where.app_id, role_name, k, regex, since, until, should_tail, streams)

    def read_log(self, app_handle: AppHandle, query: LogQuery) -> Iterable[tuple[float, str]]:
        """Yield the lines of one replica, each with its time in seconds since 1970; 0.0 if none is kept."""
        where, scheduler = self._find_log(app_handle, query.regex)
        return read_log(scheduler, where.app_id, query)

    def log_folder(self, app_handle: AppHandle) -> str | None:
        """Return the folder of a job's logs; None if its scheduler keeps none that this machine can read."""
        where, scheduler = self._find(app_handle)
        find = getattr(scheduler, "log_folder", None)
        found = find(where.app_id) if find is not None else None
        return str(found) if found else None

    # -- schedulers ------------------------------------------------------------------------------------------------

    def scheduler_run_opts(self, scheduler: str) -> runopts:
        """Return the run options of a scheduler."""
        return self._scheduler(scheduler).run_opts()

    def cfg_from_str(self, scheduler: str, *cfg_literal: str) -> dict[str, CfgVal]:
        """Read run options as the command line has them, `key=value,key=value`; later ones win."""
        options = self._scheduler(scheduler).run_opts()
        found: dict[str, CfgVal] = {}
        for literal in cfg_literal:
            found |= options.cfg_from_str(literal)
        return found

    def scheduler_backends(self) -> _list[str]:
        """Return the names of all schedulers."""
        if self._factories is not None:
            return list(self._factories)
        from holdfast.schedulers import get_scheduler_factories

        return list(get_scheduler_factories())

    def close(self) -> None:
        """Close every scheduler that was used; jobs keep running."""
        while self._schedulers:
            self._schedulers.popitem()[1].close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Runner({self._name!r})"

    def _find(self, app_handle: AppHandle) -> tuple[ParsedAppHandle, Scheduler[Any]]:
        where = parse_app_handle(app_handle)
        return where, self._scheduler(where.scheduler_backend)

    def _find_log(self, app_handle: AppHandle, regex: str | None) -> tuple[ParsedAppHandle, Scheduler[Any]]:
        if regex is not None:
            try:
                re.compile(regex)
            except re.error as error:
                raise UsageError(f"'{regex}' is not a regular expression: {error}") from None
        where, scheduler = self._find(app_handle)
        if not scheduler.exists(where.app_id):
            raise UnknownAppError(app_handle)
        return where, scheduler

    def _scheduler(self, scheduler: str) -> Scheduler[Any]:
        with self._making:
            if scheduler not in self._schedulers:
                self._schedulers[scheduler] = self._create(scheduler)
            return self._schedulers[scheduler]

    def _create(self, name: str) -> Scheduler[Any]:
        if self._factories is None:
            from holdfast.schedulers import create_scheduler

            return create_scheduler(name, self._name, **self._params)
        if name not in self._factories:
            raise UnknownSchedulerError(name)
        return self._factories[name](self._name, **self._params)


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
    **scheduler_params: object,
) -> Runner:
    """Return a runner over every installed scheduler; use it as a context manager, or close it."""
    return Runner(name or SESSION, None, component_defaults, scheduler_params)


def run(
    app: AppDef | str,
    args: Sequence[str] | Mapping[str, Any] = (),
    *,
    scheduler: str = "local",
    cfg: Cfg | None = None,
    workspace: str | Mapping[str, str] | None = None,
    timeout: float | timedelta | None = None,
) -> AppStatus:
    """Submit an app, or the component of that name with its `args`, wait for the job's end and return its status.

        status = holdfast.run("dist.ddp", ["--script", "train.py", "-j", "1x2"])
        status.raise_for_status()      # raises AppStatusError unless the job succeeded

    `args` are those of the component, as on a command line or by name. Raises `JobTimeoutError` after `timeout`, in
    seconds or as a timedelta; the job keeps running. `get_runner` submits jobs without waiting, and cancels them.
    """
    with get_runner() as runner:
        if isinstance(app, str):
            handle = runner.run_component(app, args, scheduler, cfg, workspace)
        elif args:
            raise UsageError("an AppDef takes no args: only a component does")
        else:
            handle = runner.run(app, scheduler, cfg, workspace)
        status = runner.wait(handle, timeout=timeout)
    if status is None:
        raise UnavailableError(f"{handle} was deleted before it ended")
    return status


def _params_from_environment() -> dict[str, object]:
    """Every TORCHX_* variable reaches the factories of schedulers as a lower-cased argument, as plugins expect."""
    return {key.lower(): value for key, value in os.environ.items() if key.upper().startswith("TORCHX_")}


def _build_workspaces(backend: Scheduler[Any], name: str, app: AppDef, cfg: dict[str, CfgVal]) -> None:
    from holdfast.workspace import WorkspaceMixin

    if not isinstance(backend, WorkspaceMixin):
        raise UsageError(f"the scheduler '{name}' cannot ship a workspace: leave it out and use an image with the code")
    backend.build_workspaces(app.roles, cfg)
