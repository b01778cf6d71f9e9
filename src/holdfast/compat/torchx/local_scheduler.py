"""TorchX's `local_scheduler`: its image providers, its request and its bookkeeping, as an adapter around ours.

A job is submitted, watched and ended like every local job: it is on disk and outlives this process. The differences
from TorchX are listed in docs/COMPATIBILITY.md.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pprint
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from holdfast.compat.torchx import lines
from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.home import state_folder
from holdfast.schedulers import LogQuery
from holdfast.schedulers.local import scheduler as ours
from holdfast.schedulers.local.capture import COMBINED as COMBINED_LOG
from holdfast.schedulers.local.capture import FILES, STDERR, STDOUT
from holdfast.schedulers.local.folders import Jobs
from holdfast.schedulers.local.record import LocalRequest, ReplicaPlan, RolePlan
from holdfast.specs import AppDef, AppDryRunInfo, CfgVal, Role, runopts
from holdfast.specs.states import AppState, is_terminal

if TYPE_CHECKING:
    from holdfast.schedulers import DescribeAppResponse

STDOUT_LOG, STDERR_LOG = FILES[STDOUT], FILES[STDERR]
NA = "<N/A>"
CACHE_SIZE = 100
#: The file that says that a job has ended and its logs are complete.
SUCCESS = "SUCCESS"

AppId = str
AppName = str
RoleName = str


class LocalOpts(TypedDict, total=False):
    """The run options of the local scheduler that TorchX has too."""

    log_dir: str
    prepend_cwd: bool | None
    auto_set_cuda_visible_devices: bool | None


@dataclass
class ReplicaParam:
    """How one replica is started, and where its output goes."""

    args: list[str]
    env: dict[str, str]
    stdout: str | None = None
    stderr: str | None = None
    combined: str | None = None
    cwd: str | None = None


@dataclass
class PopenRequest:
    """How a job's replicas are started, by role; it may be changed until it is submitted."""

    app_id: AppId
    log_dir: str
    role_params: dict[RoleName, list[ReplicaParam]]
    role_log_dirs: dict[RoleName, list[str]]

    def __post_init__(self) -> None:
        #: What TorchX's request has no place for: retries, code to ship, the app as it was given.
        self._native: LocalRequest | None = None


class PopenProtocol(Protocol):
    """What a process that was started has, as `subprocess.Popen` does."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def returncode(self) -> int:
        """How it ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return how that was."""

    def poll(self) -> int | None:
        """Return how it ended, or None while it runs."""

    def kill(self) -> None:
        """End it."""


# -- images ------------------------------------------------------------------------------------------------------------


class ImageProvider(ABC):
    """Says which folder of this machine an image means, and how a role is started in it."""

    @abstractmethod
    def fetch(self, image: str) -> str:
        """Make an image available and return its folder."""

    def fetch_role(self, role: Role) -> str:
        """Make a role's image available and return its folder; the role may be changed."""
        return self.fetch(role.image)

    def get_cwd(self, image: str) -> str | None:
        """The folder in which replicas run; None for the current one."""
        del image
        return None

    def get_entrypoint(self, img_root: str, role: Role) -> str:
        """The program that a role runs."""
        return os.path.join(img_root, role.entrypoint)  # noqa: PTH118 - text in, text out

    def get_replica_param(
        self,
        img_root: str,
        role: Role,
        stdout: str | None = None,
        stderr: str | None = None,
        combined: str | None = None,
    ) -> ReplicaParam:
        """How a replica of this role is started; `img_root` is what `fetch_role` returned."""
        command = [self.get_entrypoint(img_root, role), *role.args]
        return ReplicaParam(command, role.env, stdout, stderr, combined, self.get_cwd(role.image))


class LocalDirectoryImageProvider(ImageProvider):
    """An image is a folder of this machine, and replicas run in it."""

    def __init__(self, cfg: LocalOpts) -> None:
        del cfg

    def fetch(self, image: str) -> str:
        """Return the folder; raises `ValueError` if there is none."""
        if not Path(image).is_dir():
            raise UsageError(f"the image '{image}' is not a folder of this machine")
        return image

    def get_cwd(self, image: str) -> str | None:
        """The folder itself."""
        return image

    def get_entrypoint(self, img_root: str, role: Role) -> str:
        """The program as the role names it."""
        del img_root
        return role.entrypoint


class CWDImageProvider(ImageProvider):
    """Every image means the current folder."""

    def __init__(self, cfg: LocalOpts) -> None:
        del cfg

    def fetch(self, image: str) -> str:
        """Return the current folder."""
        del image
        return str(Path.cwd())

    def get_cwd(self, image: str) -> str | None:
        """The current folder."""
        return self.fetch(image)

    def get_entrypoint(self, img_root: str, role: Role) -> str:
        """The program as the role names it."""
        del img_root
        return role.entrypoint


# -- what a scheduler knows of its jobs --------------------------------------------------------------------------------


@dataclass
class _LocalReplica:
    """One replica of a job, and the names of its files."""

    role_name: RoleName
    replica_id: int
    stdout: str | None
    stderr: str | None
    combined: str | None
    error_file: str = NA


class _LocalAppDef:
    """A job that this scheduler has submitted."""

    def __init__(self, id: str, log_dir: str) -> None:  # noqa: A002 - the name that programs use
        self.id = id
        self.log_dir = log_dir
        self.role_replicas: dict[RoleName, list[_LocalReplica]] = {}
        self.state = AppState.PENDING
        self.last_updated = -1.0

    def add_replica(self, role_name: str, replica: _LocalReplica) -> None:
        """Note a replica."""
        self.role_replicas.setdefault(role_name, []).append(replica)

    def set_state(self, state: AppState) -> None:
        """Note how the job is doing."""
        self.last_updated = time.time()
        self.state = state


class LocalScheduler(ours.LocalScheduler):
    """Runs jobs as processes of this machine, with TorchX's image providers and requests.

    Programs that derive from it may set its attributes themselves instead of calling `__init__`.
    """

    def __init__(
        self,
        session_name: str,
        image_provider_class: Callable[[LocalOpts], ImageProvider] = CWDImageProvider,
        cache_size: int = CACHE_SIZE,
        extra_paths: list[str] | None = None,
    ) -> None:
        if cache_size < 1:
            raise UsageError(f"cache_size is {cache_size}: it must be 1 or more")
        super().__init__(session_name)
        self._apps: dict[AppId, _LocalAppDef] = {}
        self._image_provider_class = image_provider_class
        self._cache_size = cache_size
        self._extra_paths = extra_paths or []

    def __getattr__(self, name: str) -> Any:
        # For a class that never called `__init__`.
        if name == "_home":
            return state_folder().absolute()
        if name == "_jobs":
            return Jobs.of_session(self._home, self.session_name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _run_opts(self) -> runopts:
        options = super()._run_opts()
        options.add(
            "auto_set_cuda_visible_devices",
            type_=bool,
            default=False,
            help="share the machine's GPUs out among the replicas that ask for some",
        )
        return options

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[Any]:
        request = self._to_popen_request(app, cfg)
        return AppDryRunInfo(request, lambda made: pprint.pformat(asdict(made), indent=2, width=80))

    def _to_popen_request(self, app: AppDef, cfg: Mapping[str, Any]) -> PopenRequest:
        """Make TorchX's request of an app."""
        provider = self._image_provider_class(cfg)  # type: ignore[arg-type]
        made = copy.deepcopy(app)
        roots = {role.name: provider.fetch_role(role) for role in made.roles}
        cwds = {role.name: provider.get_cwd(role.image) or str(Path.cwd()) for role in made.roles}
        for role in made.roles:
            if role.workspace and not _is_there(role.workspace):
                role.workspace = None
            # A role adds to this process's PATH.
            role.env["PATH"] = _join_PATH(*self._extra_paths, role.env.get("PATH"), os.environ.get("PATH"))
        options = {**cfg, "auto_set_cuda_visible_devices": bool(cfg.get("auto_set_cuda_visible_devices"))}
        native = self._make_request(made, options, cwds, roots)
        native.roles = copy.deepcopy(app.roles)
        request = PopenRequest(native.app_id, ours.log_root(native), {}, {})
        request._native = native
        by_name = {role.name: role for role in made.roles}
        for plan in native.replicas:
            role = copy.copy(by_name[plan.role])
            role.entrypoint, role.args, role.env = plan.argv[0], plan.argv[1:], plan.env
            files = [f"{plan.log_dir}/{name}" for name in (STDOUT_LOG, STDERR_LOG, COMBINED_LOG)]
            param = provider.get_replica_param(roots[plan.role], role, *files)
            if plan.cwd != cwds[plan.role]:
                param.cwd = plan.cwd  # a copy of its workspace
            request.role_params.setdefault(plan.role, []).append(param)
            request.role_log_dirs.setdefault(plan.role, []).append(plan.log_dir)
        return request

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Submit a request, of TorchX's form or of ours."""
        request = dryrun_info.request
        if not isinstance(request, PopenRequest):
            return super().schedule(dryrun_info)
        app_id = super().schedule(AppDryRunInfo(self._to_native(request), self._show))
        app = _LocalAppDef(request.app_id, request.log_dir)
        for role, params in request.role_params.items():
            for number, param in enumerate(params):
                app.add_replica(role, _LocalReplica(role, number, param.stdout, param.stderr, param.combined))
        app.set_state(AppState.RUNNING)
        self._evict()
        self._apps[app_id] = app
        return app_id

    def _to_native(self, request: PopenRequest) -> LocalRequest:
        """Make our request of TorchX's, changes that were made to it included."""
        native = copy.copy(request._native) or LocalRequest(request.app_id, request.app_id, self.session_name, [], [])
        gpus = {(plan.role, plan.id): plan.gpus for plan in native.replicas}
        native.replicas = [
            ReplicaPlan(
                role,
                number,
                param.args,
                param.env,
                param.cwd or str(Path.cwd()),
                log_dir,
                gpus.get((role, number), []),
            )
            for role, params in request.role_params.items()
            for number, (param, log_dir) in enumerate(zip(params, request.role_log_dirs[role], strict=True))
        ]
        native.role_plans = native.role_plans or [RolePlan(role) for role in request.role_params]
        return native

    def _evict(self) -> None:
        """Forget the oldest jobs that have ended; they stay on disk, where `describe` finds them."""
        ended = sorted((app.last_updated, app_id) for app_id, app in self._apps.items() if is_terminal(app.state))
        for _, app_id in ended[: max(0, len(self._apps) + 1 - self._cache_size)]:
            del self._apps[app_id]

    # -- looking and ending --------------------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Say how a job is doing: it is RUNNING from the moment it was submitted."""
        found = super().describe(app_id)
        if found is None:
            return None
        if not is_terminal(found.state) and found.state is not AppState.UNKNOWN:
            found.state = AppState.RUNNING
        app = self._apps.get(app_id)
        if app is not None:
            found.ui_url = f"file://{app.log_dir}"
            if app.state is not found.state:
                app.set_state(found.state)
            if is_terminal(found.state):
                _write_success(app, found)
        return found

    def read_log(self, app_id: str, query: LogQuery) -> Iterator[tuple[float, str]]:
        """Yield the lines of one replica, each with its newline."""
        return ((at, f"{line}\n") for at, line in super().read_log(app_id, query))

    def _cancel_existing(self, app_id: str) -> None:
        """End a job and wait until it has ended."""
        super()._cancel_existing(app_id)
        self._wait_ended(self._jobs.folder(app_id))


def _is_there(workspace: str | Mapping[str, str]) -> bool:
    """Whether a workspace can be shipped; an absent folder is no error, but it is said."""
    if not isinstance(workspace, str) or "://" in workspace.removeprefix("file://"):
        return True
    found = Path(workspace.removeprefix("file://")).exists()
    if not found:
        facts.warn("workspace_missing", f"the workspace {workspace} is not there, so no code is shipped")
    return found


def _write_success(app: _LocalAppDef, found: DescribeAppResponse) -> None:
    """Leave the file that says that the logs of a job are complete, once."""
    by_name = {role.role: {each.id: each for each in role.replicas} for role in found.roles_statuses}
    roles = {
        role: [
            {
                "replica_id": replica.replica_id,
                "exitcode": by_name[role][replica.replica_id].exit_code,
                "stdout": replica.stdout,
                "stderr": replica.stderr,
                "error_file": replica.error_file,
            }
            for replica in replicas
        ]
        for role, replicas in app.role_replicas.items()
    }
    said = {
        "app_id": app.id,
        "log_dir": app.log_dir,
        "final_state": found.state.name,
        "last_updated": app.last_updated,
        "roles": roles,
    }
    # A job that was deleted meanwhile has no folder any more.
    with contextlib.suppress(FileExistsError, FileNotFoundError), Path(app.log_dir, SUCCESS).open("x") as file:
        json.dump(said, file, indent=2)


def _join_PATH(*paths: str | None) -> str:
    """Join what goes into PATH; what is empty is left out."""
    return os.pathsep.join(path.strip(os.pathsep) for path in paths if path)


class LogIterator(lines.LogIterator):
    """Yields what a replica's log file holds; of a combined one of ours, the lines without time and stream."""

    _HEAD = re.compile(r"^\d+\.\d{6} [oeh] ", re.MULTILINE)

    def _read(self) -> Iterator[str]:
        pieces = super()._read()
        return self._without_heads(pieces) if self._log_file.name == COMBINED_LOG else pieces

    def _without_heads(self, pieces: Iterator[str]) -> Iterator[str]:
        rest = ""
        for piece in pieces:
            whole, newline, rest = (rest + piece).rpartition("\n")
            if newline:
                yield self._HEAD.sub("", whole + newline)
        if rest:
            yield self._HEAD.sub("", rest)


def create_scheduler(
    session_name: str,
    cache_size: int = CACHE_SIZE,
    extra_paths: list[str] | None = None,
    image_provider_class: Callable[[LocalOpts], ImageProvider] = CWDImageProvider,
    **kwargs: Any,
) -> LocalScheduler:
    """Make the local scheduler for one session."""
    del kwargs  # what the environment holds for other schedulers
    return LocalScheduler(session_name, image_provider_class, cache_size, extra_paths)
