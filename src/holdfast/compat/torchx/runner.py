"""TorchX's `runner.api`: our runner with the promises of that name.

It writes what it adds (job id, parent run, trackers) into the roles of the app that it is given, gives a workspace to
the first role alone, takes roles of equal names, raises `KeyError` for an unknown scheduler, and passes the lines of
schedulers on as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.compat.torchx.components import materialize_appdef
from holdfast.compat.torchx.schedulers import get_scheduler_factories
from holdfast.components.finder import get_component
from holdfast.errors import UnknownSchedulerError, UsageError
from holdfast.runner import api
from holdfast.runner.check import check_app
from holdfast.specs import AppDef, AppDryRunInfo, parse_app_handle
from holdfast.tracker.api import ENV_TORCHX_PARENT_RUN_ID
from holdfast.workspace import WorkspaceMixin

if TYPE_CHECKING:
    from holdfast.runner.api import Cfg, SchedulerFactory
    from holdfast.schedulers import Scheduler

#: What TorchX calls its session.
SESSION = "torchx"


class _UndefinedScheduler(UnknownSchedulerError, KeyError):
    """There is no scheduler of this name; `KeyError` is what TorchX raises."""

    __str__ = UnknownSchedulerError.__str__


class Runner(api.Runner):
    """Our runner with TorchX's promises."""

    def __init__(
        self,
        name: str = SESSION,
        scheduler_factories: Mapping[str, SchedulerFactory] | None = None,
        component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
        scheduler_params: Mapping[str, object] | None = None,
    ) -> None:
        factories = get_scheduler_factories() if scheduler_factories is None else scheduler_factories
        super().__init__(name, factories, component_defaults, scheduler_params)

    @property
    def _scheduler_factories(self) -> Mapping[str, SchedulerFactory] | None:
        return self._factories

    @property
    def _scheduler_params(self) -> dict[str, object]:
        return self._params

    @property
    def _scheduler_instances(self) -> dict[str, Scheduler[Any]]:
        return self._schedulers

    def _scheduler(self, scheduler: str) -> Scheduler[Any]:
        if scheduler not in self._schedulers and scheduler not in (self._factories or {}):
            raise _UndefinedScheduler(scheduler)
        return super()._scheduler(scheduler)

    def _scheduler_app_id(self, app_handle: str, check_session: bool = True) -> tuple[Scheduler[Any], str, str]:
        """Return the scheduler of a job, its name, and the job's id."""
        del check_session
        backend, _, app_id = parse_app_handle(app_handle)
        return self._scheduler(backend), backend, app_id

    def make_app(self, component: str, component_args: Sequence[str] | Mapping[str, Any]) -> AppDef:
        """Call a component with its arguments, and return its app."""
        defaults = self._component_defaults.get(component)
        return materialize_appdef(get_component(component).fn, component_args, defaults, name=component)

    def dryrun(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Cfg | None = None,
        workspace: str | Mapping[str, str] | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Make the scheduler's own request for an app and return it without submitting it; changes the app."""
        if not app.roles:
            raise UsageError(f"the app '{app.name}' has no roles: add at least one to `roles`")
        for role in app.roles:
            check_app(AppDef(app.name, [role]))
        if workspace and isinstance(self._scheduler(scheduler), WorkspaceMixin):
            app.roles[0].workspace = workspace if isinstance(workspace, str) else dict(workspace)
        self._label(app, scheduler, os.environ.get(ENV_TORCHX_PARENT_RUN_ID) or parent_run_id)
        return self._make_request(app, scheduler, cfg)


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, Any]] | None = None,
    **scheduler_params: object,
) -> Runner:
    """Return a runner over every installed scheduler; use it as a context manager, or close it."""
    return Runner(name or SESSION, get_scheduler_factories(), component_defaults, scheduler_params)
