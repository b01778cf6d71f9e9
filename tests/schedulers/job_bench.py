"""Jobs of one role that runs a shell script, for the tests of several schedulers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from holdfast.schedulers import Scheduler
from holdfast.specs import AppDef, Resource, Role, is_terminal

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0


class JobBench:
    """One session of jobs. Scripts write a dollar sign twice."""

    def __init__(self, scheduler: Scheduler, home: Path | None = None, *, cfg: dict | None = None, **role: Any) -> None:
        self.scheduler = scheduler
        self.home = home
        self._cfg = cfg or {}
        self._role = {"image": "", "resource": Resource(1, 0, 64), **role}

    def role(self, script: str, name: str = "main", **more: Any) -> Role:
        return Role(name, **{**self._role, "entrypoint": "sh", "args": ["-c", script], **more})

    def submit(self, script: str, cfg: dict | None = None, **role: Any) -> str:
        return self.submit_app([self.role(script, **role)], cfg)

    def submit_app(self, roles: list[Role], cfg: dict | None = None) -> str:
        return self.scheduler.submit(AppDef("job", roles), {**self._cfg, **(cfg or {})})

    def wait(self, app_id: str, until=None):
        """Wait until a job has ended, or is as wanted; returns what is said of it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.scheduler.describe(app_id)
            if until(found) if until else is_terminal(found.state):
                return found
            assert time.monotonic() < deadline, f"still {found}"
            self.scheduler.wait_news(app_id, 0.5)

    def lines(self, app_id: str, role: str = "main", k: int = 0) -> list[str]:
        return list(self.scheduler.log_iter(app_id, role, k))

    def wait_line(self, app_id: str, line: str, k: int = 0) -> None:
        """Wait until a replica has written this line."""
        assert line in self.scheduler.log_iter(app_id, "main", k, should_tail=True), "the job ended without it"

    def clear(self) -> None:
        """Delete every job of the session."""
        for app in self.scheduler.list():
            self.scheduler.delete(app.app_id)
