"""The scheduler of a job service: what users call, the same for all services."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.filenames import file_name
from holdfast.home import make_folders, state_folder
from holdfast.schedulers.api import LogQuery, Scheduler
from holdfast.schedulers.cloud.common import JobInfo, Service, Site
from holdfast.schedulers.local.render import make_id
from holdfast.schedulers.local.scheduler import letters
from holdfast.specs import (
    AppDef,
    AppDryRunInfo,
    CfgVal,
    ReplicaStatus,
    RoleStatus,
    is_terminal,
    make_app_handle,
    runopts,
)

if TYPE_CHECKING:
    import builtins

    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse

#: How often a service is asked about a job that is waited for, or whose log is followed.
ASK_EVERY_S = 5.0


class CloudScheduler(Scheduler[dict[str, Any]]):
    """Runs jobs on a job service; see `holdfast.schedulers.cloud`."""

    def __init__(
        self,
        backend: str,
        session_name: str,
        service: Service,
        ask_every_s: float = ASK_EVERY_S,
        home: Path | None = None,
    ) -> None:
        super().__init__(backend, session_name)
        self._service = service
        self._ask_every_s = ask_every_s
        #: There once a job was submitted from here: before, no command asks a service that may not even be in use.
        self._used = (home or state_folder()).absolute() / "cloud" / backend / file_name(session_name)

    def _run_opts(self) -> runopts:
        options = runopts()
        for each in self._service.options():
            options.add(each.name, type_=each.type, help=each.help, default=each.default, required=each.required)
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Refuse what the service cannot run; that is known when the request is made."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[dict[str, Any]]:
        site = Site(self.backend, self.session_name, make_id(app.name, letters()))
        return AppDryRunInfo(self._service.render(app, cfg, site), lambda request: json.dumps(request, indent=2))

    def schedule(self, dryrun_info: AppDryRunInfo[dict[str, Any]]) -> str:
        """Submit the request."""
        app_id = self._service.submit(dryrun_info.request)
        try:
            make_folders(self._used)
        except OSError as error:
            facts.warn("cloud_record", f"`holdfast list` will not show {app_id}: {error}")
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing, or None where there is none of that id."""
        from holdfast.schedulers.replies import DescribeAppResponse

        info = self._service.find(app_id)
        if info is None:
            return None
        return DescribeAppResponse(
            app_id=info.id,
            state=info.state,
            num_restarts=info.restarts,
            msg=info.msg,
            roles_statuses=[
                RoleStatus(role.name, [_replica(info, role.name, k) for k in range(role.num_replicas)])
                for role in info.roles
            ],
            roles=list(info.roles),
            name=info.name,
            submitted_at=info.submitted,
            started_at=info.started,
            ended_at=info.ended,
        )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session that the service still knows; none where none was submitted from here."""
        from holdfast.schedulers.replies import ListAppResponse

        if not cfg and not self._used.exists():
            return []
        return [
            ListAppResponse(
                info.id,
                info.state,
                make_app_handle(self.backend, self.session_name, info.id),
                info.name,
                info.submitted,
            )
            for info in self._service.all(cfg or {})
            if info.session == self.session_name
        ]

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Wait: the service tells nothing by itself."""
        del app_id
        time.sleep(min(timeout, self._ask_every_s))

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica, as the service has kept them."""
        info = self._service.find(app_id)
        if info is None:
            raise UsageError(
                f"there is no job {app_id} here; `holdfast list -s {self.backend}` lists the ones that exist"
            )
        there = {role.name: role.num_replicas for role in info.roles}
        if query.replica >= there.get(query.role, 0):
            known = ", ".join(f"{name}/{k}" for name, count in there.items() for k in range(count))
            raise UsageError(f"the job {app_id} has no replica {query.role}/{query.replica}; it has {known}")
        return self._lines(info, query)

    def _lines(self, info: JobInfo, query: LogQuery) -> Iterator[tuple[float, str]]:
        from holdfast.schedulers.local import logs

        wanted = logs.wanted(query)
        after: Any = None
        while True:
            found = self._service.find(info.id) if query.follow else None
            is_over = found is None or is_terminal(found.state)  # before the log is read: then this is all
            while True:
                lines, after_these = self._service.lines(info, query.role, query.replica, after)
                for at, text in lines:
                    if wanted.takes(at, "h", text) or (at == 0.0 and wanted.pattern is None):
                        yield at, text
                moved, after = after_these != after, after_these
                if not lines or not moved:
                    break
            if is_over:
                return
            time.sleep(self._ask_every_s)

    def _cancel_existing(self, app_id: str) -> None:
        info = self._service.find(app_id)
        if info is not None and not is_terminal(info.state):
            self._service.stop(app_id)


def _replica(info: JobInfo, role: str, number: int) -> ReplicaStatus:
    state, code, host = info.replicas.get((role, number), (info.state, None, ""))
    return ReplicaStatus(id=number, state=state, role=role, hostname=host, exit_code=code)
