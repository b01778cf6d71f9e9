"""What a runner does to the app that it is given, and what it hands to a scheduler."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any, Dict
from unittest import mock

import torchx.runner.api
import torchx.runner.config
from torchx.runner import Runner, get_runner
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.specs import AppDef, AppDryRunInfo, AppState, Role, UnknownAppException, runopts
from torchx.workspace.api import WorkspaceMixin


class Own(WorkspaceMixin[None], Scheduler[Any]):
    """A scheduler that only remembers."""

    def __init__(self, session_name: str, **kwargs: Any) -> None:
        super().__init__("own", session_name)
        self.kwargs = kwargs
        self.handed: list[Any] = []

    def _run_opts(self) -> runopts:
        options = runopts()
        options.add("queue", type_=str, help="", default="all")
        options.add("empty", type_=Dict[str, str], help="", default=[])
        return options

    def workspace_opts(self) -> runopts:
        options = runopts()
        options.add("repo", type_=str, help="", default="r")
        return options

    def build_workspace_and_update_role(self, role: Role, workspace: Any, cfg: Any) -> None:
        role.image = f"{cfg['repo']}/{workspace}"

    def submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        self.handed.append(sorted(cfg.items()))
        return super().submit_dryrun(app, cfg)

    def _submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        return AppDryRunInfo([role.image for role in app.roles], repr)

    def _validate(self, app: AppDef, scheduler: str) -> None:
        print("validate", scheduler, [role.name for role in app.roles])

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        return "job-1"

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return DescribeAppResponse(app_id, AppState.SUCCEEDED) if app_id == "job-1" else None

    def list(self) -> list[ListAppResponse]:
        return [ListAppResponse("job-1", AppState.SUCCEEDED)]

    def _cancel_existing(self, app_id: str) -> None:
        print("cancel", app_id)

    def log_iter(self, app_id: str, role_name: str, *args: Any, **kwargs: Any) -> Iterable[str]:
        return ["whole\n", "no end", "\rbar"]


def app(*names: str) -> AppDef:
    return AppDef("app", [Role(name, "image", entrypoint="true") for name in names or ("r",)])


def show_dryrun() -> None:
    runner = Runner("mine", {"own": Own}, scheduler_params={"a": 1})
    job = app("one", "two")
    info = runner.dryrun(job, "own", {"queue": "q"}, workspace="code", parent_run_id="parent")
    print(info.request, [role.image for role in job.roles], info._scheduler, info._app is job)
    for role in job.roles:
        print(sorted((key, value) for key, value in role.env.items() if key.startswith("TORCHX")))
    print(runner._scheduler("own").handed, sorted(runner._scheduler_params), list(runner._scheduler_factories))
    print(runner.dryrun(app("same", "same"), "own").request)
    for wrong in (
        AppDef("app", []),
        AppDef("app", [Role("r", "i", entrypoint="")]),
        AppDef("app", [Role("r", "i", entrypoint="x", num_replicas=0)]),
    ):
        try:
            runner.dryrun(wrong, "own")
        except ValueError:
            print("ValueError")
    os.environ["TORCHX_PARENT_RUN_ID"] = "from the environment"
    job = app()
    runner.dryrun(job, "own", parent_run_id="given")
    print(job.roles[0].env["TORCHX_PARENT_RUN_ID"])
    del os.environ["TORCHX_PARENT_RUN_ID"]


def show_jobs() -> None:
    runner = Runner("mine", {"own": Own})
    handle = runner.run(app(), "own")
    print(handle, runner.status(handle).state.name, runner.status("own://mine/none"))
    print(list(runner.log_lines(handle, "r")))
    print(runner.describe(handle).roles[0].name, runner.describe("own://mine/none"), runner.scheduler_backends())
    print([each.app_handle for each in runner.list("own")])
    scheduler, backend, app_id = runner._scheduler_app_id(handle)
    print(type(scheduler).__name__, backend, app_id)
    try:
        list(runner.log_lines("own://mine/none", "r"))
    except UnknownAppException:
        print("an unknown app")
    job = app()
    print(Own("s").submit(job, {}, workspace="code"), job.roles[0].image)


def show_patches() -> None:
    with mock.patch("torchx.runner.api.get_scheduler_factories", return_value={"own": Own}), get_runner() as runner:
        print(runner.scheduler_backends(), runner.name())
    with mock.patch("torchx.runner.config.get_scheduler_factories", return_value={"own": Own}):
        cfg: dict[str, Any] = {}
        written = io.StringIO()
        torchx.runner.config.dump(written)
        print(written.getvalue())
        torchx.runner.config.load("own", io.StringIO(written.getvalue()), cfg)
        print(sorted(cfg.items(), key=str))


if __name__ == "__main__":
    show_dryrun()
    show_jobs()
    show_patches()
