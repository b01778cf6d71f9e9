"""The scheduler of Docker and Podman: what users call."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, UsageError
from holdfast.facts import facts
from holdfast.home import state_folder
from holdfast.schedulers.api import LogQuery, Scheduler
from holdfast.schedulers.containers.build import build_image, find_dockerfile
from holdfast.schedulers.containers.client import Engine
from holdfast.schedulers.containers.keeper import RECORD, read_request
from holdfast.schedulers.containers.options import chosen_env
from holdfast.schedulers.containers.render import Build, ContainerRequest, Site, image_of, image_tag, plan, show
from holdfast.schedulers.local.folders import JobFolder, write_json
from holdfast.schedulers.local.record import Shipment
from holdfast.schedulers.local.render import make_id
from holdfast.schedulers.local.scheduler import LocalScheduler, letters
from holdfast.schedulers.shipping import plan_copies, sizes_of, take_secret
from holdfast.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role, is_terminal, make_app_handle, runopts
from holdfast.wire.secret import INSECURE_VARIABLE, write_secret
from holdfast.workspace.api import Workspace, WorkspaceMixin

if TYPE_CHECKING:
    import builtins

    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse

#: How long a job that is killed may take before what it has left is removed by force.
KILLED_S = 30.0


class ContainerScheduler(WorkspaceMixin[None], Scheduler[ContainerRequest]):
    """Runs jobs as containers of Docker or Podman; see `holdfast.schedulers.containers`."""

    def __init__(self, engine: str, session_name: str, home: Path | None = None) -> None:
        super().__init__(engine, session_name)
        self._home = (home or state_folder()).absolute()
        self._local = LocalScheduler(session_name, self._home / engine)
        self._local.backend = engine
        self._engine = Engine(engine)

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("image", type_=str, help="image of an app that names none")
        options.add("pull", type_=str, default="missing", help="when images are pulled: missing, always or never")
        options.add("network", type_=str, help="network to use, or host; by default each job has one of its own")
        options.add("shm_size", type_=str, help="size of /dev/shm, as in 8g; by default the app's memory")
        options.add("user", type_=str, help="user in the containers, as in 1000:1000; by default the image's")
        options.add("init", type_=bool, default=True, help="make the engine's init process 1 of each container")
        options.add("privileged", type_=bool, default=False, help="give the containers all rights on the host")
        options.add("copy_env", type_=list[str], help="variables of your shell that the app gets, as in AWS_*,HF_TOKEN")
        options.add("env", type_=dict[str, str], help="variables that the app gets, as in A:1,B:2")
        options.add("flags", type_=list[str], help=f"other flags of `{self.backend} create`, as in cap-add:IPC_LOCK")
        options.add(
            "dockerfile",
            type_=str,
            help="Dockerfile in the workspace; by default Dockerfile.holdfast, or one that copies the code",
        )
        options.add("cancel_grace_s", type_=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
        options.add("keep", type_=int, help="how many finished jobs to keep")
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Refuse an app without images; one that names no resources has no limits."""
        del scheduler
        for role in app.roles:
            image_of(role, cfg or {})

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build nothing yet: the image is planned with the request, and built when the job is submitted."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[ContainerRequest]:
        app_id = make_id(app.name, letters())
        environ = dict(os.environ)
        site = Site(
            self.backend,
            self.session_name,
            app_id,
            str(self._local.job_folder(app_id)),
            sys.executable,
            chosen_env(cfg, environ),
            _gpus(app, environ),
            self._plan_builds(app, cfg, app_id),
        )
        request, warnings = plan(app, cfg, site)
        for sentence in warnings:
            facts.warn("container_gpus", sentence)
        return AppDryRunInfo(request, self._show)

    def _plan_builds(self, app: AppDef, cfg: Mapping[str, CfgVal], app_id: str) -> dict[str, Build]:
        """Say which images are built; roles with equal workspaces and images share one."""
        named = str(cfg.get("dockerfile") or "")
        found: list[Build] = []
        by_role = {}
        for role in app.roles:
            if not role.workspace:
                continue
            roots = plan_copies(AppDef("", [role]), "")[1][0].roots
            base = image_of(role, cfg)
            build = next((each for each in found if (each.base, each.roots) == (base, roots)), None)
            if build is None:
                dockerfile = find_dockerfile(roots, named)
                build = Build(image_tag(app_id, role.name), base, roots, [], dockerfile)
                found.append(build)
            build.roles.append(role.name)
            by_role[role.name] = build
        return by_role

    def _show(self, request: ContainerRequest) -> str:
        return show(request, sizes_of([Shipment(each.tag, each.roots) for each in request.builds], self._home))

    def schedule(self, dryrun_info: AppDryRunInfo[ContainerRequest]) -> str:
        """Have the images, build what is to be built, write the job down and start its supervisor."""
        request = dryrun_info.request
        built = {build.tag for build in request.builds}
        bases = {build.base for build in request.builds}
        for image in sorted(({box.image for box in request.boxes} - built) | bases):
            self._engine.ensure_image(image, request.pull)
        environ = dict(os.environ)
        key = take_secret(environ)
        if key is None:
            for box in request.boxes:
                box.env.setdefault(INSECURE_VARIABLE, environ[INSECURE_VARIABLE])

        def fill(draft: Path) -> None:
            write_json(draft / RECORD, request.to_json())
            if key is not None:
                write_secret(draft / "secret", key)

        try:
            for build in request.builds:
                build_image(self._engine, request, build, self._home)
            self._local.start(request.job, fill)
        except BaseException:
            self._sweep(request.handle, images=True)
            raise
        return request.job.app_id

    # -- looking -------------------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing, or None where there is none of that id."""
        from holdfast.schedulers.containers.parse import with_names

        found = self._local.describe(app_id)
        if found is None:
            return None
        self._tidy(app_id, found)
        return with_names(read_request(self._local.job_folder(app_id)), found)

    def _tidy(self, app_id: str, found: DescribeAppResponse) -> None:
        """Remove the containers of a job whose supervisor was killed: they would run on."""
        if not is_terminal(found.state):
            return
        record = JobFolder(self._local.job_folder(app_id)).read_state()
        if record is not None and not is_terminal(AppState[record.state]):
            self._sweep(self._handle(app_id))

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return self._local.exists(app_id)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session, the oldest first."""
        return self._local.list(cfg)

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Return when the job's state has changed, at the latest after `timeout` seconds."""
        self._local.wait_news(app_id, timeout)

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica, of all its containers; when following, until the job has ended."""
        if not self.exists(app_id):
            raise UsageError(
                f"there is no job {app_id} here; `holdfast list -s {self.backend}` lists the ones that exist"
            )
        return self._local.read_log(app_id, query)

    def log_folder(self, app_id: str) -> str | None:
        """Return the folder that has one for each role, with the logs of its replicas; None for a job that is gone."""
        return self._local.log_folder(app_id)

    # -- ending --------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        self._local.cancel(app_id)

    def kill(self, app_id: str) -> None:
        """End a job at once: no replica gets time to end by itself."""
        if not self.exists(app_id):
            return
        self._local.kill(app_id)
        JobFolder(self._local.job_folder(app_id)).wait_gone(KILLED_S)
        self._sweep(self._handle(app_id))

    def _delete_existing(self, app_id: str) -> None:
        self._local.delete(app_id)
        self._sweep(self._handle(app_id), images=True)

    def _handle(self, app_id: str) -> str:
        return make_app_handle(self.backend, self.session_name, app_id)

    def _sweep(self, handle: str, *, images: bool = False) -> None:
        """Remove what a job has left; an engine that does not answer has nothing that runs on."""
        try:
            self._engine.sweep(handle, images=images)
        except HoldfastError as error:
            facts.warn("container_left", f"what {handle} has left could not be removed: {error}")


def _gpus(app: AppDef, environ: Mapping[str, str]) -> list[str] | None:
    """Name this machine's GPUs; None where the engine is on another, or no role wants one."""
    host = environ.get("DOCKER_HOST") or environ.get("CONTAINER_HOST") or ""
    if (host and not host.startswith("unix:")) or not any(role.resource.gpu > 0 for role in app.roles):
        return None
    from holdfast.workers.accelerators import gpu_count

    return [str(number) for number in range(gpu_count({}))]
