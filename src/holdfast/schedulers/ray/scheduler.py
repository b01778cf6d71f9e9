"""The Ray scheduler: what users call. All that it knows of a job it asks the Ray Jobs API for."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import UnavailableError, UsageError
from holdfast.facts import facts
from holdfast.home import make_folders, state_folder
from holdfast.schedulers import cluster
from holdfast.schedulers.api import LogQuery, Scheduler
from holdfast.schedulers.local.folders import read_record, write_json
from holdfast.schedulers.local.record import LocalRequest
from holdfast.schedulers.local.render import make_id
from holdfast.schedulers.local.scheduler import letters
from holdfast.schedulers.ray import parse
from holdfast.schedulers.ray.client import RayClient
from holdfast.schedulers.ray.render import (
    DEFAULT_ADDRESS,
    JOB_KEY,
    NAME_KEY,
    SESSION_KEY,
    RayRequest,
    address_of,
    check,
    show,
)
from holdfast.schedulers.shipping import WORKSPACE, plan_copies, ship_all, sizes_of
from holdfast.specs import AppDef, AppDryRunInfo, CfgVal, Role, is_terminal, make_app_handle, runopts
from holdfast.workspace.api import Workspace, WorkspaceMixin

if TYPE_CHECKING:
    import builtins

    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse

#: Where Ray's own tools look for a cluster.
ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
#: How often Ray is asked about a job that is waited for.
ASK_EVERY_S = 1.0
#: How long a job that is stopped may take before `delete` gives up on it.
END_TIMEOUT_S = 120.0


class RayScheduler(WorkspaceMixin[None], Scheduler[RayRequest]):
    """Runs jobs on a Ray cluster; see `holdfast.schedulers.ray`."""

    def __init__(self, session_name: str, home: Path | None = None) -> None:
        super().__init__("ray", session_name)
        self._home = (home or state_folder()).absolute()
        self._clients: dict[str, RayClient] = {}

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add(
            "dashboard_address",
            type_=str,
            help=f"where the Ray Jobs API is; by default $RAY_API_SERVER_ADDRESS, $RAY_ADDRESS or {DEFAULT_ADDRESS}",
        )
        options.add("python", type_=str, default="python", help="Python of the cluster, one that has Holdfast")
        options.add("pip", type_=list[str], help="packages that Ray installs for the job, as in holdfast,numpy")
        options.add("cancel_grace_s", type_=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Refuse what Ray cannot run; a role without resources gets one CPU."""
        del scheduler, cfg
        check(app)

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build nothing: Ray ships the code when the job is submitted."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[RayRequest]:
        check(app)
        app_id = make_id(app.name, letters())
        copies, shipments = plan_copies(app, f"{cluster.JOB_FOLDER}/{WORKSPACE}")
        cwds = {role.name: cluster.JOB_FOLDER for role in app.roles} | copies
        job = cluster.plan(
            app,
            {"cancel_grace_s": cfg.get("cancel_grace_s")},
            cluster.Site(self.backend, self.session_name, app_id, cwds),
        )
        job.shipments = shipments
        packages = cfg.get("pip") or []
        assert isinstance(packages, list)
        request = RayRequest(
            job,
            address_of(str(cfg.get("dashboard_address") or self._default_address())),
            str(cfg.get("python") or "python"),
            {"pip": packages} if packages else {},
        )
        return AppDryRunInfo(request, lambda made: show(made, sizes_of(made.job.shipments, self._home)))

    def schedule(self, dryrun_info: AppDryRunInfo[RayRequest]) -> str:
        """Send the code and the request to Ray, and submit the job."""
        request = dryrun_info.request
        app_id = request.job.app_id
        with tempfile.TemporaryDirectory(prefix="holdfast-ray-") as folder:
            ship_all(request.job.shipments, Path(folder), self._home)
            write_json(Path(folder) / "job.json", request.job.to_json())
            self._client(request.address).submit(
                entrypoint=request.entrypoint(),
                runtime_env={**request.runtime_env, "working_dir": folder},
                metadata=request.metadata(),
                submission_id=app_id,
            )
        self._remember(app_id, request.address)
        return app_id

    # -- looking -------------------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing, or None where there is none of that id."""
        client = self._client_of(app_id)
        info = client.find(app_id)
        if info is None or info.metadata.get(SESSION_KEY) != self.session_name:
            return None
        return parse.describe(info, _job(info), parse.read_story(client.log(app_id)))

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        info = self._client_of(app_id).find(app_id)
        return info is not None and info.metadata.get(SESSION_KEY) == self.session_name

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session on the cluster, the oldest first; none where no cluster is in use here."""
        from holdfast.schedulers.replies import ListAppResponse

        in_use = any(os.environ.get(name, "").startswith("http") for name in ADDRESS_VARIABLES)
        if not cfg and not in_use and not any(self._record("x").parent.glob("*.json")):
            return []
        address = address_of(str((cfg or {}).get("dashboard_address") or self._default_address()))
        mine = [each for each in self._client(address).all() if each.metadata.get(SESSION_KEY) == self.session_name]
        return [
            ListAppResponse(
                info.id,
                info.state,
                make_app_handle(self.backend, self.session_name, info.id),
                info.metadata.get(NAME_KEY, ""),
                info.started,
            )
            for info in sorted(mine, key=lambda each: each.started or 0.0)
        ]

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Wait: Ray tells nothing by itself."""
        del app_id
        time.sleep(min(timeout, ASK_EVERY_S))

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica; when following, until the job has ended."""
        from holdfast.schedulers.local import logs

        client = self._client_of(app_id)
        info = client.find(app_id)
        if info is None or info.metadata.get(SESSION_KEY) != self.session_name:
            raise UsageError(f"there is no job {app_id} here; `holdfast list -s ray` lists the ones that exist")
        job = _job(info)
        cluster.portion(job, query.role, query.replica)
        wanted = logs.wanted(query)
        lines = client.follow(app_id) if query.follow and not is_terminal(info.state) else iter(client.log(app_id))
        return self._pick(lines, query, wanted)

    def _pick(self, lines: Iterator[str], query: LogQuery, wanted: object) -> Iterator[tuple[float, str]]:
        from holdfast.schedulers.local import logs

        assert isinstance(wanted, logs.Wanted)
        for line in parse.lines_of(lines, query.role, query.replica):
            at, letter, text = logs.parse_line(line)
            if wanted.takes(at, letter, text):
                yield at, text

    # -- ending --------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        client = self._client_of(app_id)
        info = client.find(app_id)
        if info is not None and not is_terminal(info.state):
            client.stop(app_id)

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        client = self._client_of(app_id)
        deadline = time.monotonic() + END_TIMEOUT_S
        while (info := client.find(app_id)) is not None and not is_terminal(info.state):
            if time.monotonic() > deadline:
                raise UnavailableError(f"the job {app_id} has not ended yet; delete it again in a while")
            time.sleep(ASK_EVERY_S / 4)
        if info is not None:
            client.delete(app_id)
        self._record(app_id).unlink(missing_ok=True)

    # -- clusters ------------------------------------------------------------------------------------------------------

    def _client(self, address: str) -> RayClient:
        return self._clients.setdefault(address, RayClient(address))

    def _client_of(self, app_id: str) -> RayClient:
        """Return the cluster that a job was submitted to from here; else the one that the environment names."""
        found = read_record(self._record(app_id), dict)
        return self._client(str(found["address"]) if found else address_of(self._default_address()))

    def _default_address(self) -> str:
        named = [os.environ[name] for name in ADDRESS_VARIABLES if os.environ.get(name)]
        # `auto` and plain addresses of a GCS are for programs inside of the cluster.
        return next((each for each in named if each.startswith("http")), DEFAULT_ADDRESS)

    def _record(self, app_id: str) -> Path:
        from holdfast.filenames import file_name

        return self._home / "ray" / file_name(self.session_name) / f"{file_name(app_id)}.json"

    def _remember(self, app_id: str, address: str) -> None:
        path = self._record(app_id)
        try:
            make_folders(path.parent)
            write_json(path, {"address": address})
        except OSError as error:
            facts.warn("ray_record", f"where the job {app_id} runs could not be written down: {error}")


def _job(info: parse.JobInfo) -> LocalRequest:
    try:
        return LocalRequest.from_json(json.loads(info.metadata[JOB_KEY]))
    except (KeyError, ValueError) as error:
        raise UsageError(f"the job {info.id} was not submitted by this version of Holdfast: {error}") from None
