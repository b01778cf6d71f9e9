"""A scheduler of one's own, written against TorchX's names: jobs are lines in a file."""

import json
import os
from pathlib import Path

from torchx.schedulers import Scheduler
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse
from torchx.specs import AppDef, AppDryRunInfo, AppState, runopts


def jobs_file() -> Path:
    return Path(os.environ["MY_JOBS"])


def read_jobs() -> dict[str, dict]:
    return json.loads(jobs_file().read_text()) if jobs_file().exists() else {}


class MyScheduler(Scheduler):
    """Every job succeeds the moment it is submitted."""

    def __init__(self, session_name: str, **kwargs: object) -> None:
        super().__init__("my_scheduler", session_name)

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("queue", type_=str, help="where the job waits", default="short")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg) -> AppDryRunInfo:
        request = {"name": app.name, "queue": cfg["queue"], "commands": [[r.entrypoint, *r.args] for r in app.roles]}
        return AppDryRunInfo(request, lambda request: json.dumps(request, indent=2))

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        jobs = read_jobs()
        app_id = f"{dryrun_info.request['name'].replace(' ', '-')}-{len(jobs)}"
        jobs_file().write_text(json.dumps({**jobs, app_id: dryrun_info.request}))
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return DescribeAppResponse(app_id=app_id, state=AppState.SUCCEEDED) if app_id in read_jobs() else None

    def list(self) -> list[ListAppResponse]:
        return [ListAppResponse(app_id=app_id, state=AppState.SUCCEEDED) for app_id in read_jobs()]

    def _cancel_existing(self, app_id: str) -> None:
        pass


def create_scheduler(session_name: str, **kwargs: object) -> Scheduler:
    return MyScheduler(session_name, **kwargs)
