"""The interface of a scheduler: how an app is turned into a native request, submitted, watched and ended.

A plugin fills in the abstract methods and registers a factory `create_scheduler(session_name, **kwargs)` as an entry
point of the group `holdfast.schedulers` (or `torchx.schedulers`). `holdfast.testing.scheduler_contract` checks it.

Plugins may be older than this interface, or derive from TorchX's own class where that is installed. So code that uses a
scheduler calls `validate`, `list_jobs`, `wait_news` and `read_log` of this module, which make do with what the
plugin has.
"""

from __future__ import annotations

import builtins
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from holdfast.errors import UsageError
from holdfast.specs import NULL_RESOURCE, AppDef, AppDryRunInfo, CfgVal, runopts

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse, Stream
else:

    def __getattr__(name: str) -> Any:
        """Bring the answers in when they are first asked for: a dry run gets none."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from holdfast.schedulers import replies

        return globals().setdefault(name, getattr(replies, name))


__all__ = [
    "DescribeAppResponse",
    "ListAppResponse",
    "LogQuery",
    "Scheduler",
    "Stream",
    "list_jobs",
    "read_log",
    "validate",
    "wait_news",
]

T = TypeVar("T")


class LogQuery(NamedTuple):
    """Which lines of which replica are wanted, in the order of `Scheduler.log_iter`.

    With `follow` lines come until the replica ends. `regex` keeps the lines in which it is found, `since` and `until`
    those written in that time; without `streams` both come together.
    """

    role: str
    replica: int = 0
    regex: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    follow: bool = False
    streams: Stream | None = None


class Scheduler(ABC, Generic[T]):
    """Runs jobs somewhere; `T` is the type of its native request."""

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name

    # -- what a scheduler of your own fills in -----------------------------------------------------------------------

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Make the native request without any side effect."""

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[T]) -> str:
        """Submit the request and return the job's id."""

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state of a job, or None if there is none with that id."""

    @abstractmethod
    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs that this scheduler knows; `cfg` are run options, if it needs some to find them."""

    @abstractmethod
    def _cancel_existing(self, app_id: str) -> None:
        """End a job that exists; no error if it has ended already."""

    # -- what may be changed -------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        """The options that a user may set for one run."""
        return runopts()

    def _delete_existing(self, app_id: str) -> None:
        """Delete a job and its files; by default it is only cancelled."""
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
        """Yield the lines of one replica's output without line ends, oldest first; for the arguments see `LogQuery`.

        Plugins written for TorchX have this method. By default it yields the lines of `read_log`.
        """
        query = LogQuery(role_name, k, regex, since, until, should_tail, streams)
        return (line for _, line in self.read_log(app_id, query))

    def read_log(self, app_id: str, query: LogQuery) -> Iterable[tuple[float, str]]:
        """Yield the lines of one replica, each with the time at which it was written, in seconds since 1970.

        With times the lines of several replicas can be merged; a scheduler that does not keep times overrides
        `log_iter` instead. A job, role or replica that does not exist is a `UsageError`.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not give logs")

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Refuse an app that cannot run here; by default one with a role without resources."""
        del scheduler, cfg
        for role in app.roles:
            if role.resource == NULL_RESOURCE:
                raise UsageError(f"the role '{role.name}' does not say what resources it needs")

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Return when the job's state may have changed, at the latest after `timeout` seconds.

        A scheduler that gets events about changes overrides this; the others just wait.
        """
        del app_id
        time.sleep(timeout)

    def close(self) -> None:
        """Release everything that the scheduler holds; jobs keep running."""

    # -- what every scheduler does ---------------------------------------------------------------------------------

    def submit(self, app: AppDef, cfg: Mapping[str, CfgVal], workspace: str | None = None) -> str:
        """Make the request and submit it; returns the job's id.

        A workspace goes to the first role of the app, whose image then names the result.
        """
        resolved = self.run_opts().resolve(cfg)
        build = getattr(self, "build_workspaces", None)  # of schedulers that ship code
        if workspace is not None and app.roles and build is not None:
            app.roles[0].workspace = workspace
            build(app.roles[:1], resolved)
        return self.schedule(self.submit_dryrun(app, resolved))

    def submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Make the request with all options filled in, and let each role change it."""
        resolved = self.run_opts().resolve(cfg)
        info = self._submit_dryrun(app, resolved)
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        info._app, info._cfg, info._scheduler = app, dict(resolved), self.backend
        return info

    def run_opts(self) -> runopts:
        """The options that a user may set for one run, those of its workspace included."""
        options = self._run_opts()
        workspace_opts = getattr(self, "workspace_opts", None)  # of schedulers that ship code
        if workspace_opts is not None:
            options.update(workspace_opts())
        return options

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return self.describe(app_id) is not None

    def cancel(self, app_id: str) -> None:
        """End a job; does nothing if there is none."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def delete(self, app_id: str) -> None:
        """Delete a job; does nothing if there is none."""
        if self.exists(app_id):
            self._delete_existing(app_id)

    def __enter__(self) -> Scheduler[T]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# -- for code that uses schedulers, old plugins included ---------------------------------------------------------------


def validate(scheduler: Scheduler[Any], app: AppDef, cfg: Mapping[str, CfgVal]) -> None:
    """Call a scheduler's checks of an app, also those of one whose `_validate` takes no run options."""
    if _takes(scheduler._validate, app, scheduler.backend, cfg):
        scheduler._validate(app, scheduler.backend, cfg)
    else:
        scheduler._validate(app, scheduler.backend)


def list_jobs(scheduler: Scheduler[Any], cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
    """List a scheduler's jobs, also of one whose `list` takes no run options."""
    return scheduler.list(cfg) if _takes(scheduler.list, cfg) else scheduler.list()


def wait_news(scheduler: Scheduler[Any], app_id: str, timeout: float) -> None:
    """Wait until a job's state may have changed, also with a scheduler that must be polled."""
    wait = getattr(scheduler, "wait_news", None)
    if wait is None:
        time.sleep(timeout)
    else:
        wait(app_id, timeout)


def read_log(scheduler: Scheduler[Any], app_id: str, query: LogQuery) -> Iterable[tuple[float, str]]:
    """Yield a replica's lines with their times; 0.0 if a scheduler has only lines."""
    has_times = getattr(type(scheduler), "read_log", Scheduler.read_log) is not Scheduler.read_log
    if has_times:
        return scheduler.read_log(app_id, query)
    return ((0.0, line) for line in scheduler.log_iter(app_id, *query))


def _takes(method: Callable[..., object], *args: object) -> bool:
    """Whether a method can be called with these arguments."""
    import inspect

    try:
        inspect.signature(method).bind(*args)
    except TypeError:
        return False
    return True
