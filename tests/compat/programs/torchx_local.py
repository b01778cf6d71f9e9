"""Jobs on the local scheduler: image providers, requests, states, logs, and a scheduler that derives from it."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchx.runner import get_runner
from torchx.schedulers.api import Stream, filter_regex, split_lines_iterator
from torchx.schedulers.local_scheduler import (
    COMBINED_LOG,
    STDERR_LOG,
    STDOUT_LOG,
    AppId,
    CWDImageProvider,
    ImageProvider,
    LocalDirectoryImageProvider,
    LocalOpts,
    LocalScheduler,
    LogIterator,
    PopenRequest,
    ReplicaParam,
    _LocalAppDef,
    create_scheduler,
)
from torchx.specs import AppDef, AppDryRunInfo, AppState, Role, is_terminal, macros

HERE = Path.cwd()


def clean(text: str) -> str:
    """Leave out what differs from run to run."""
    return re.sub(r"(echo|app|job)-[a-z0-9]+", r"\1-ID", text).replace(str(HERE), "HERE")


def raises(kind: type[Exception], call: Any, *args: Any, **kwargs: Any) -> str:
    """Whether a call raises what programs catch; ours may be of a further kind too."""
    try:
        return f"returned {call(*args, **kwargs)!r}"
    except kind:
        return kind.__name__


def app(name: str, command: str, replicas: int = 1, image: str = "", **env: str) -> AppDef:
    return AppDef(name, [Role("r", image, entrypoint="sh", args=["-c", command], num_replicas=replicas, env=env)])


def wait(scheduler: LocalScheduler, app_id: str) -> Any:
    while True:
        found = scheduler.describe(app_id)
        if found is None or is_terminal(found.state):
            return found


def show_providers() -> None:
    print(STDOUT_LOG, STDERR_LOG, COMBINED_LOG, AppId is str, sorted(LocalOpts.__annotations__))
    role = Role("r", str(HERE), entrypoint="run.sh", args=["x"], env={"A": "1"})
    for provider in (CWDImageProvider({}), LocalDirectoryImageProvider({})):
        root = provider.fetch_role(role)
        param = provider.get_replica_param(root, role, "out", "err", "both")
        print(clean(root), clean(str(provider.get_cwd(role.image))), clean(str(asdict(param))))
    print(
        raises(ValueError, LocalDirectoryImageProvider({}).fetch, "/nowhere"),
        raises(ValueError, LocalDirectoryImageProvider({}).fetch, "name"),
    )

    class Own(ImageProvider):
        def fetch(self, image: str) -> str:
            return f"/images/{image}"

    made = Own().get_replica_param("/images/i", Role("r", "i", entrypoint="bin/x", args=["1"]))
    print(made.args, made.cwd, made.stdout, ReplicaParam(["a"], {}) == ReplicaParam(["a"], {}))
    print(
        raises(ValueError, LocalScheduler, "s", CWDImageProvider, 0),
        raises(ValueError, create_scheduler, "s", cache_size=0),
    )


def show_requests() -> None:
    scheduler = create_scheduler("s", extra_paths=["/extra/bin"], image_provider_class=CWDImageProvider)
    job = app("app", f"echo {macros.app_id} {macros.replica_id} {macros.img_root}", 2, A="1")
    request = scheduler.submit_dryrun(job, {"log_dir": str(HERE / "logs")}).request
    print(type(request) is PopenRequest, clean(request.app_id), clean(request.log_dir))
    for number, param in enumerate(request.role_params["r"]):
        print(clean(str(param.args)), param.env["A"], param.env["TORCHX_RANK0_HOST"], clean(str(param.cwd)))
        print([clean(str(path)) for path in (param.stdout, param.stderr, param.combined)])
        print(clean(request.role_log_dirs["r"][number]))
        print(param.env["PATH"].startswith("/extra/bin:"), param.env["PATH"].split(":")[-1] == str(HERE))
    first = scheduler.submit_dryrun(job, {"prepend_cwd": True}).request.role_params["r"][0]
    print(first.env["PATH"].split(":")[0] == str(HERE))
    scheduler.close()


def show_jobs() -> None:
    (HERE / "tool").write_text("#!/bin/sh\necho from the working folder\n")
    (HERE / "tool").chmod(0o755)
    (HERE / "image").mkdir()
    (HERE / "image" / "inside").write_text("#!/bin/sh\npwd\n")
    (HERE / "image" / "inside").chmod(0o755)
    scheduler = create_scheduler("s")
    by_name = scheduler.submit(AppDef("app", [Role("r", "", entrypoint="tool")]), {"log_dir": str(HERE / "logs")})
    print(wait(scheduler, by_name).state.name, list(scheduler.log_iter(by_name, "r")))
    success = json.loads((HERE / "logs" / "s" / by_name / "SUCCESS").read_text())
    print(sorted(success), success["final_state"], sorted(success["roles"]), success["roles"]["r"][0]["exitcode"])

    both = scheduler.submit(app("app", "echo one; echo two >&2; echo three"), {"log_dir": str(HERE / "logs")})
    print(wait(scheduler, both).state.name, sorted(scheduler.log_iter(both, "r")))
    for stream in (Stream.STDOUT, Stream.STDERR):
        print(list(scheduler.log_iter(both, "r", streams=stream)))
    print(list(scheduler.log_iter(both, "r", regex="th")))

    failed = scheduler.submit(app("app", "exit 3"), {"log_dir": str(HERE / "logs")})
    print(wait(scheduler, failed).state.name, clean(wait(scheduler, failed).ui_url), scheduler.exists("none"))
    slow = scheduler.submit(app("app", "exec sleep 1000"), {"log_dir": str(HERE / "logs")})
    print(scheduler.describe(slow).state.name)
    scheduler.cancel(slow)
    print(scheduler.describe(slow).state.name)

    folders = LocalScheduler("s", LocalDirectoryImageProvider)
    inside = folders.submit(AppDef("app", [Role("r", str(HERE / "image"), entrypoint="inside")]), {})
    print(wait(folders, inside).state.name, clean("".join(folders.log_iter(inside, "r"))))
    print(raises(ValueError, folders.submit, AppDef("app", [Role("r", "/nowhere", entrypoint="inside")]), {}))
    folders.close()
    scheduler.close()


def show_runner() -> None:
    with get_runner() as runner:
        print(runner.name(), raises(KeyError, runner.dryrun, app("app", "true"), "nowhere"))
        handle = runner.run(app("job", "echo hello; exec sleep 1000"), "local_cwd", {"log_dir": str(HERE / "logs")})
        print(clean(handle), runner.status(handle).state.name)
        print(next(iter(runner.log_lines(handle, "r", should_tail=True))))
        runner.cancel(handle)
        print(runner.wait(handle, 0.1).state.name)


class OwnScheduler(LocalScheduler):
    """One that sets the attributes itself, as programs do."""

    def __init__(self, session_name: str) -> None:
        self.backend = "local"
        self.session_name = session_name
        self._apps: dict[AppId, _LocalAppDef] = {}
        self._image_provider_class = CWDImageProvider
        self._cache_size = 10
        self._extra_paths: list[str] = []
        self._base_log_dir: str | None = None
        self._created_tmp_log_dir = False

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        return AppDryRunInfo(self._to_popen_request(app, {"log_dir": cfg["folder"]}), repr)

    def run_opts(self) -> Any:
        options = super().run_opts()
        options.add("folder", type_=str, help="", required=True)
        return options

    def read(self, app_id: str) -> list[str]:
        path = os.path.join(self._apps[app_id].log_dir, "r", "0", COMBINED_LOG)
        return list(filter_regex("o", split_lines_iterator(LogIterator(app_id, path, self))))


def show_own() -> None:
    scheduler = OwnScheduler("own")
    app_id = scheduler.submit(app("app", "echo one; echo two"), {"folder": str(HERE / "own")})
    print(wait(scheduler, app_id).state.name, scheduler._apps[app_id].state is AppState.SUCCEEDED)
    print(clean(scheduler._apps[app_id].log_dir), list(scheduler._apps[app_id].role_replicas), scheduler.read(app_id))
    again = _LocalAppDef(id=app_id, log_dir="x")
    again.set_state(AppState.FAILED)
    print(again.state.name, again.role_replicas)


if __name__ == "__main__":
    os.environ.pop("TORCHXCONFIG", None)
    show_providers()
    show_requests()
    show_jobs()
    show_runner()
    show_own()
