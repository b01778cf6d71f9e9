"""The Slurm scheduler: what users call. It asks Slurm for a job's state, and the job's folder for everything else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import UnavailableError, UsageError
from holdfast.facts import facts
from holdfast.home import expand, state_folder
from holdfast.schedulers import cluster
from holdfast.schedulers.api import LogQuery, Scheduler
from holdfast.schedulers.local.folders import clear
from holdfast.schedulers.local.render import make_id
from holdfast.schedulers.local.scheduler import folder_of, letters
from holdfast.schedulers.shipping import WORKSPACE, plan_copies, ship_all, sizes_of, take_secret
from holdfast.schedulers.slurm import client
from holdfast.schedulers.slurm.folders import Run, SlurmJobs, read_request
from holdfast.schedulers.slurm.options import SBATCH_OPTIONS
from holdfast.schedulers.slurm.render import BATCH_LOG, LOST_AFTER_S, SlurmRequest, check, container_of, render, show
from holdfast.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role, is_terminal, make_app_handle, runopts
from holdfast.workspace.api import Workspace, WorkspaceMixin

if TYPE_CHECKING:
    import builtins

    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse
    from holdfast.schedulers.slurm.parse import JobInfo

#: How often Slurm is asked about a job that is waited for, or whose log is followed.
ASK_EVERY_S = 1.0
#: How long a cancelled job may take to end before `delete` gives up on it.
END_TIMEOUT_S = 120.0
#: How much of the batch log is read for its last line.
LAST_LINE_BYTES = 4096


class SlurmScheduler(WorkspaceMixin[None], Scheduler[SlurmRequest]):
    """Runs jobs on a Slurm cluster; see `holdfast.schedulers.slurm`."""

    def __init__(self, session_name: str, home: Path | None = None) -> None:
        super().__init__("slurm", session_name)
        self._home = (home or state_folder()).absolute()
        self._jobs = SlurmJobs(self._home, session_name)
        #: What Slurm said last of each job, and when: a caller that asks often must not be a burden to its controller.
        self._asked: dict[str, tuple[float, tuple[int, int] | None, list[JobInfo]]] = {}

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        options = runopts()
        for name, text in SBATCH_OPTIONS.items():
            options.add(name, type_=str, help=text)
        options.add("sbatch", type_=dict[str, str], help="any other flags of sbatch, as in exclusive:,licenses:a@b")
        options.add("setup", type_=str, help="lines of shell at the start of the batch script, as in module load cuda")
        options.add("python", type_=str, help="Python on the nodes, one that has Holdfast; by default this one")
        options.add("job_dir", type_=str, help="folder for the job's files that all nodes share; by default at home")
        options.add("requeue", type_=bool, default=True, help="go back to the queue when preempted, or out of time")
        options.add(
            "notice_s",
            type_=float,
            default=120.0,
            help="how long before the time limit workers get SIGTERM, to save and leave; 0 for never",
        )
        options.add(
            "lost_after_s",
            type_=float,
            default=LOST_AFTER_S,
            help="how long the first node may be silent before the others give the job back to the queue",
        )
        options.add("cancel_grace_s", type_=float, help="seconds between SIGTERM and SIGKILL; by default notice_s")
        options.add(
            "copy_workspace", type_=bool, default=True, help="run in a copy of the workspace; False: as it lies"
        )
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Refuse what cannot run as one step; a role without resources takes what the partition gives by default."""
        del scheduler, cfg
        check(app)

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build nothing: the copy is planned with the request, and made when the job is submitted."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[SlurmRequest]:
        where = str(cfg.get("job_dir") or "")
        folder = str(self._jobs.folder(make_id(app.name, letters()), str(expand(where)) if where else ""))
        copies, shipments = plan_copies(
            app, f"{cluster.JOB_FOLDER}/{WORKSPACE}", as_it_lies=cfg.get("copy_workspace") is False
        )
        cwds = {role.name: folder_of(role) for role in app.roles}
        site = cluster.Site(self.backend, self.session_name, cluster.JOB_ID, {**cwds, **copies})
        job = cluster.plan(app, {}, site)
        job.shipments = shipments
        request = render(app, cfg, job, folder, str(cfg.get("python") or sys.executable))
        return AppDryRunInfo(request, self._show)

    def _show(self, request: SlurmRequest) -> str:
        return show(request, sizes_of(request.job.shipments, self._home))

    def schedule(self, dryrun_info: AppDryRunInfo[SlurmRequest]) -> str:
        """Copy what is shipped, write the job down and submit it."""
        request = dryrun_info.request
        if any(container_of(role) for role in request.job.roles) and not client.runs_containers():
            raise UsageError(
                "the app has an image, and srun of this cluster runs no containers (it lacks the plugin pyxis): "
                "leave the image out, and name a Python with -cfg python=PATH"
            )
        environ = dict(os.environ)
        folder = self._jobs.create(request, take_secret(environ))
        try:
            ship_all(request.job.shipments, folder, self._home)
            job_id = client.submit(folder / "script", environ)
        except BaseException:
            clear(folder)
            raise
        self._jobs.name(job_id, folder)
        return job_id

    # -- looking -------------------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing, or None where there is none of that id."""
        from holdfast.schedulers.slurm import parse

        found = self._jobs.find(app_id)
        if found is None:
            return None
        folder, number = found
        job = read_request(folder).job
        run = Run(folder, number or "0")
        infos = self._ask(app_id, run)
        if not number and any("_" in info.id for info in infos):
            return parse.describe_array(app_id, job, infos)
        seen = parse.Seen(app_id, job, infos, run.read_batch(), run.records(job), _last_line(folder / BATCH_LOG))
        return parse.describe(seen)

    def _ask(self, app_id: str, run: Run) -> builtins.list[JobInfo]:
        """Ask Slurm about a job, unless that was done a moment ago and the job has written nothing since."""
        now, stamp = time.monotonic(), _stamp(run.path / "batch.json")
        if app_id in self._asked:
            at, before, infos = self._asked[app_id]
            if before == stamp and now - at < ASK_EVERY_S:
                return infos
        infos = client.find(app_id)
        self._asked[app_id] = (now, stamp, infos)
        return infos

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return self._jobs.find(app_id) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session, the oldest first."""
        from holdfast.schedulers.replies import ListAppResponse
        from holdfast.schedulers.slurm import parse

        del cfg
        ids = self._jobs.all()
        queued = client.find_all() if ids else {}
        listed = []
        for job_id in ids:
            folder, _ = self._jobs.find(job_id) or (self._jobs.path / job_id, "")
            try:
                job = read_request(folder).job
                batch = Run(folder).read_batch()
            except UsageError as error:
                facts.warn("slurm_record", str(error))
                continue
            infos = [queued[job_id]] if job_id in queued else []
            state = parse.judge(infos, batch)
            if state is AppState.UNKNOWN:  # Slurm has forgotten it, or it is an array
                found = self.describe(job_id)
                state = found.state if found is not None else state
            handle = make_app_handle(self.backend, self.session_name, job_id)
            listed.append(ListAppResponse(job_id, state, handle, job.name, (folder / "script").stat().st_mtime))
        return listed

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Return when the job's batch program has written something, at the latest after `timeout` seconds."""
        found = self._jobs.find(app_id)
        path = Run(found[0], found[1] or "0").path / "batch.json" if found is not None else None
        until, before = time.monotonic() + timeout, _stamp(path)
        while (left := until - time.monotonic()) > 0 and _stamp(path) == before:
            time.sleep(min(left, 0.1))

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica, those of all its starts; to follow it is until the job has ended."""
        from holdfast.schedulers.local import logs

        found = self._jobs.find(app_id)
        if found is None:
            raise UsageError(f"there is no job {app_id} here; `holdfast list -s slurm` lists the ones that exist")
        folder, number = found
        job = read_request(folder).job
        cluster.portion(job, query.role, query.replica)
        return logs.follow(
            Run(folder, number or "0").log(query.role, query.replica) / "combined.log",
            logs.wanted(query),
            ended=_Ending(self, app_id).has_come,
            wait=time.sleep if query.follow else None,
            now=time.time,
        )

    def log_folder(self, app_id: str) -> str | None:
        """Return the folder that has one for each role, with the logs of its replicas; None for a job that is gone."""
        found = self._jobs.find(app_id)
        return str(Run(found[0], found[1] or "0").path / "logs") if found is not None else None

    # -- ending --------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        client.cancel(app_id)
        self._asked.pop(app_id, None)

    def kill(self, app_id: str) -> None:
        """End a job at once: no replica gets time to end by itself."""
        if self.exists(app_id):
            client.cancel(app_id, hard=True)
            self._cancel_existing(app_id)

    def _delete_existing(self, app_id: str) -> None:
        if "_" in app_id:
            raise UsageError(f"delete the whole array {app_id.partition('_')[0]}; {app_id} is one run of it")
        self._cancel_existing(app_id)
        deadline = time.monotonic() + END_TIMEOUT_S
        while (found := self.describe(app_id)) is not None and found.state in (AppState.PENDING, AppState.RUNNING):
            if time.monotonic() > deadline:
                raise UnavailableError(f"the job {app_id} has not ended yet; delete it again in a while")
            self.wait_news(app_id, 1.0)
        self._jobs.remove(app_id)


class _Ending:
    """Whether a job has ended; Slurm is asked only now and then."""

    def __init__(self, scheduler: SlurmScheduler, app_id: str) -> None:
        self._scheduler = scheduler
        self._app_id = app_id
        self._next = 0.0
        self._come = False

    def has_come(self) -> bool:
        """Whether nothing more will be written."""
        if not self._come and time.monotonic() >= self._next:
            found = self._scheduler.describe(self._app_id)
            self._come = found is None or is_terminal(found.state) or found.state is AppState.UNKNOWN
            self._next = time.monotonic() + ASK_EVERY_S
        return self._come


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_LINE_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def _stamp(path: Path | None) -> tuple[int, int] | None:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if found is not None else None
