"""The local scheduler's interface for users. It submits by starting a supervisor, and reads only the jobs' folders."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import holdfast
from holdfast.errors import UnavailableError, UsageError
from holdfast.facts import facts
from holdfast.filenames import file_name
from holdfast.home import expand, state_folder
from holdfast.schedulers.api import LogQuery, Scheduler
from holdfast.schedulers.local import keep
from holdfast.schedulers.local.folders import JobFolder, Jobs, boot_id
from holdfast.schedulers.local.record import JobRecord, LocalRequest, ReplicaRecord
from holdfast.schedulers.local.render import (
    GPUS_VARIABLE,
    ID_LETTERS,
    PORT_VARIABLE,
    Surroundings,
    make_id,
    render,
    show,
)
from holdfast.schedulers.shipping import WORKSPACE, plan_copies, ship_all, sizes_of
from holdfast.specs import AppDef, AppDryRunInfo, CfgVal, Role, make_app_handle, runopts
from holdfast.workspace.api import Workspace, WorkspaceMixin

if TYPE_CHECKING:
    import builtins

    from holdfast.schedulers.replies import DescribeAppResponse, ListAppResponse

ID_CHARS = 5
#: What a job may take to end beyond the grace time of its replicas, before `delete` gives up on it.
END_TIMEOUT_S = 60.0
#: The first process forks and ends at once, so that the supervisor is detached; only then does it import.
_START = """
import os, sys
if os.fork():
    os._exit(0)
sys.path.insert(0, sys.argv[1])
sys.path.append(sys.argv[4])
from holdfast.schedulers.local.supervisor import main
main(sys.argv[2], int(sys.argv[3]))
"""
#: Variables that belong to the job from within which another is submitted, and must not reach that one.
NOT_HANDED_DOWN = ("HOLDFAST_GANG", PORT_VARIABLE)
#: Variables that name a file or folder, maybe from the submitter's current folder.
NAMES_OF_FILES = ("HOLDFAST_HOME", "HOLDFAST_SECRET_FILE", "HOLDFAST_TLS_CERT", "HOLDFAST_TLS_KEY", "HOLDFAST_TLS_CA")


class LocalScheduler(WorkspaceMixin[None], Scheduler[LocalRequest]):
    """Runs jobs as processes of this machine; see `holdfast.schedulers.local`."""

    def __init__(self, session_name: str, home: Path | None = None) -> None:
        super().__init__("local", session_name)
        self._home = (home or state_folder()).absolute()
        self._jobs = Jobs.of_session(self._home, session_name)

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("log_dir", type_=str, help="folder for the logs; by default they lie with the job and go with it")
        options.add(
            "prepend_cwd", type_=bool, default=False, help="put the replicas' folder first in their PATH, not last"
        )
        options.add(
            "auto_set_cuda_visible_devices",
            type_=bool,
            default=True,
            help="share the machine's GPUs out among the replicas that ask for some",
        )
        options.add("cancel_grace_s", type_=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
        options.add(
            "copy_workspace",
            type_=bool,
            default=True,
            help="run in a copy of the workspace, which later edits do not reach; False: in the folder as it lies",
        )
        options.add(
            "keep",
            type_=int,
            help=f"how many finished jobs to keep ({keep.JOBS_VARIABLE} for all runs; {keep.KEEP_JOBS} by default)",
        )
        return options

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Everything may run here; resources are not counted."""

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build nothing: the copy is planned with the request, and made when the job is submitted."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[LocalRequest]:
        cwds = {role.name: folder_of(role) for role in app.roles}
        return AppDryRunInfo(self._make_request(app, cfg, cwds), self._show)

    def _make_request(
        self,
        app: AppDef,
        cfg: Mapping[str, CfgVal],
        cwds: Mapping[str, str],
        img_roots: Mapping[str, str] | None = None,
    ) -> LocalRequest:
        """Make the request for an app whose roles run in these folders, or in a copy of their workspace."""
        keep.policy_from(os.environ)  # a wrong limit is the submitter's mistake, so it is told here
        app_id = make_id(app.name, letters())
        root = cfg.get("log_dir")
        if root:
            logs_root = expand(str(root)).absolute() / file_name(self.session_name) / file_name(app_id)
        else:
            logs_root = self._jobs.folder(app_id).path / "logs"
        copies, shipments = plan_copies(
            app, str(self._jobs.folder(app_id).path / WORKSPACE), as_it_lies=cfg.get("copy_workspace") is False
        )
        around = Surroundings(
            backend=self.backend,
            session=self.session_name,
            app_id=app_id,
            cwds={**cwds, **copies},
            img_roots=img_roots or {},
            log_root=str(logs_root),
            environ=os.environ,
            gpus=_gpus() if any(role.resource.gpu > 0 for role in app.roles) else (),
            python_folder=_python_folder(),
        )
        request, warnings = render(app, cfg, around)
        for sentence in warnings:
            facts.warn("local_gpus", sentence)
        request.shipments = shipments
        kept = cfg.get("keep")
        request.keep_jobs = kept if isinstance(kept, int) else None
        return request

    def schedule(self, dryrun_info: AppDryRunInfo[LocalRequest]) -> str:
        """Copy the code, write the job's record and start its supervisor; return as soon as that runs."""
        request = dryrun_info.request
        self.start(request, lambda draft: ship_all(request.shipments, draft, self._home))
        return request.app_id

    def job_folder(self, app_id: str) -> Path:
        """Return the folder that a job has, or would have."""
        return self._jobs.folder(app_id).path

    def start(self, request: LocalRequest, fill: Callable[[Path], None]) -> None:
        """Write a job down and start its supervisor; `fill` adds to its folder what belongs to it."""
        record = JobRecord(
            name=request.name,
            host=os.uname().nodename,
            boot_id=boot_id(),
            submitted_at=time.time(),
            replicas=[ReplicaRecord(role=replica.role, id=replica.id) for replica in request.replicas],
        )
        folder, lock = self._jobs.create(request, record, fill)
        try:
            _start_supervisor(folder, lock)
        except BaseException:
            folder.remove()
            raise
        finally:
            os.close(lock)

    def _show(self, request: LocalRequest) -> str:
        """Write a request out, with how much would be shipped."""
        return show(request, sizes_of(request.shipments, self._home))

    # -- looking -------------------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the status of a job, or None if there is none with that id."""
        from holdfast.schedulers.local import parse

        folder = self._jobs.folder(app_id)
        looked = folder.look()
        request = folder.read_request()
        return None if looked is None or request is None else parse.describe(request, *looked)

    def exists(self, app_id: str) -> bool:
        """Whether there is a job of that id."""
        return self._jobs.folder(app_id).path.is_dir()

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> builtins.list[ListAppResponse]:
        """List the jobs of this session, the oldest first; one with a damaged record is left out and reported."""
        from holdfast.schedulers.local import parse

        del cfg
        found = []
        for folder in self._jobs.all():
            try:
                looked = folder.look()
            except UsageError as error:
                facts.warn("local_record", str(error))
                continue
            if looked is not None:
                app_id = folder.path.name
                handle = make_app_handle(self.backend, self.session_name, app_id)
                found.append(parse.listing(app_id, handle, *looked))
        return sorted(found, key=lambda app: (app.submitted_at or 0.0, app.app_id))

    def wait_news(self, app_id: str, timeout: float) -> None:
        """Return when the job's state has changed, at the latest after `timeout` seconds."""
        self._jobs.folder(app_id).wait_news(timeout)

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica, of all its attempts; when following, until the job has ended."""
        from holdfast.schedulers.local import logs

        folder = self._jobs.folder(app_id)
        request = folder.read_request()
        if request is None:
            raise UsageError(f"there is no job {app_id} here; `holdfast list` lists the ones that exist")
        who = (query.role, query.replica)
        plan = next((each for each in request.replicas if (each.role, each.id) == who), None)
        if plan is None:
            raise UsageError(f"the job {app_id} has no replica {who[0]}/{who[1]}; it has {_replicas_of(request)}")
        return logs.follow(
            Path(plan.log_dir) / "combined.log",
            logs.wanted(query),
            ended=lambda: not folder.alive(),
            wait=folder.wait_end if query.follow else None,
            now=time.time,
        )

    def log_folder(self, app_id: str) -> str | None:
        """Return the folder that has one for each role, with the logs of its replicas; None for a job that is gone."""
        request = self._jobs.folder(app_id).read_request()
        return None if request is None or not request.replicas else log_root(request)

    # -- ending --------------------------------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        self._within_reach(app_id).ask_cancel()

    def kill(self, app_id: str) -> None:
        """End a job at once: no replica gets time to end by itself."""
        self._within_reach(app_id).ask_cancel(hard=True)

    def _delete_existing(self, app_id: str) -> None:
        folder = self._within_reach(app_id)
        folder.ask_cancel()
        if not self._wait_ended(folder):
            raise UnavailableError(f"the job {app_id} has not ended yet; delete it again in a while")
        folder.remove()

    def _wait_ended(self, folder: JobFolder) -> bool:
        """Wait until a cancelled job has ended; return whether that came about in time."""
        try:
            request = folder.read_request()
        except UsageError:
            request = None  # its record is damaged, which is a good reason to delete it
        grace = request.cancel_grace_s if request is not None else 0.0
        return folder.wait_gone(grace + END_TIMEOUT_S)

    def _within_reach(self, app_id: str) -> JobFolder:
        """Return a job's folder; refuse one that another machine, which shares it, may be running."""
        from holdfast.schedulers.local import parse
        from holdfast.specs.states import AppState

        folder = self._jobs.folder(app_id)
        try:
            looked = folder.look()
        except UsageError:
            return folder  # its record is damaged, so there is nothing to judge by
        if looked is not None and (verdict := parse.judge(*looked)).state is AppState.UNKNOWN:
            raise UsageError(f"the job {app_id} cannot be ended from here: {verdict.msg}")
        return folder


def log_root(request: LocalRequest) -> str:
    """Return the folder that has one for each role, with the logs of its replicas."""
    return os.path.commonpath([Path(replica.log_dir).parent.parent for replica in request.replicas])


def _start_supervisor(folder: JobFolder, lock: int) -> None:
    """Start the supervisor in a session of its own and pass the lock to it."""
    import subprocess

    package = str(Path(holdfast.__file__).parent.parent)
    libraries = str(Path(msgspec.__file__).parent.parent)
    env = {key: value for key, value in os.environ.items() if key not in NOT_HANDED_DOWN}
    # The supervisor and its replicas run in other folders.
    env |= {key: str(expand(env[key]).absolute()) for key in NAMES_OF_FILES if env.get(key)}
    log = os.open(folder.path / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # Without site and the user's variables it starts faster, and what is installed can disturb it less: it is
        # looked for last, and no .pth file is read.
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, package, str(folder.path), str(lock), libraries],
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise UnavailableError(f"cannot start the job's supervisor with {sys.executable}: {error}") from error
    finally:
        os.close(log)
    if done.returncode:
        said = (folder.path / "supervisor.log").read_text(errors="replace").strip()
        raise UnavailableError(f"the job's supervisor could not start (exit code {done.returncode}): {said[-500:]}")


def folder_of(role: Role) -> str:
    """Name the folder in which a role's replicas run: its image where that is one of this machine, else the current."""
    image = role.image.removeprefix("file://")
    return image if image.startswith("/") and Path(image).is_dir() else os.getcwd()  # noqa: PTH109


def _python_folder() -> str:
    """Name the folder of our Python where it is that of a virtual environment and none has been activated.

    A call of `.venv/bin/holdfast` means that environment also for the replicas; if one is active, PATH already names
    it.
    """
    activated = {"VIRTUAL_ENV", "CONDA_PREFIX"} & os.environ.keys()
    if os.environ.get("PATH") and (sys.prefix == sys.base_prefix or activated):
        return ""
    return str(Path(sys.executable).parent)


def _gpus() -> builtins.list[str]:
    """Name the GPUs that this process may use."""
    from holdfast.workers.accelerators import gpu_count, visible_devices

    present = gpu_count({})
    visible = os.environ.get(GPUS_VARIABLE)
    return [str(n) for n in range(present)] if visible is None else visible_devices(visible, present)


def letters() -> str:
    """Return random letters for the end of a job's id."""
    return "".join(ID_LETTERS[byte % len(ID_LETTERS)] for byte in os.urandom(ID_CHARS))


def _replicas_of(request: LocalRequest) -> str:
    counts: dict[str, int] = {}
    for replica in request.replicas:
        counts[replica.role] = counts.get(replica.role, 0) + 1
    return ", ".join(f"{role}/0" if count == 1 else f"{role}/0 to {count - 1}" for role, count in counts.items())
