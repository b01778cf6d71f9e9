"""What a job's hosts get as its secret, from the order for a host to the file there; no host is asked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.schedulers import cluster
from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.schedulers.ssh import remote
from holdfast.schedulers.ssh.hosts import place
from holdfast.schedulers.ssh.render import Access, SshRequest, used
from holdfast.schedulers.ssh.scheduler import SshScheduler
from holdfast.specs import AppDef, Role


class Here:
    """In place of ssh: carries out a host's order in this process."""

    def __init__(self, home: Path) -> None:
        self.scheduler = LocalScheduler("s", home)

    def address_of(self, host: str) -> str:
        return host

    def call(self, host: str, order: dict[str, Any], body: Path | None) -> dict[str, Any]:
        del host, body
        return remote.submit(json.loads(json.dumps(order)), self.scheduler, "")


def test_a_secret_that_is_not_text_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(128, 160)))
    secret.chmod(0o600)
    monkeypatch.setenv("HOLDFAST_SECRET_FILE", os.fspath(secret))
    app = AppDef("app", [Role("main", "", entrypoint="true")])
    placed = place(app, ("a",))
    plan = cluster.plan(app, {}, cluster.Site("ssh", "s", "app-x", {"main": "/"}))
    here = Here(tmp_path / "there")

    SshScheduler("s", tmp_path / "here")._start(here, SshRequest(used(plan, placed), placed, Access()), 29500)

    [found] = (tmp_path / "there").rglob("secret")
    assert found.read_bytes().strip() == secret.read_bytes()
    here.scheduler.delete("app-x")
