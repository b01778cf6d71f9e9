"""A run can be found from the moment that its agent starts, while it still waits and imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.conftest import Launch
from tests.processes import finish

StartLaunch = Callable[..., Launch]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Follows runs of the same user from another process."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "events", "--follow", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        )
        started.append(process)
        return process

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_run_whose_imports_hang_is_found_by_its_journal_and_told_on_the_screen(
    launch: StartLaunch, follow: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow_module.py").write_text(f"open({str(gate)!r}).close()\n")
    running = launch("--preload", "slow_module", script="print('trained')", PYTHONPATH=str(tmp_path))
    assert running.process.stderr is not None
    assert running.process.stderr.readline() == "holdfast: importing slow_module; workers start when that is done\n"
    follower = follow("--json")
    assert follower.stdout is not None
    kinds = [json.loads(follower.stdout.readline())["kind"]]
    while kinds[-1] != "template_importing":
        kinds.append(json.loads(follower.stdout.readline())["kind"])
    with gate.open("w"):
        pass  # the import goes on
    out, err = finish(follower)

    assert kinds[0] == "agent_started"
    assert ", live; logs: " in err
    assert [json.loads(line)["kind"] for line in out.splitlines()][-1] == "run_ended"
    assert running.end()[0] == 0


def test_a_run_that_waits_for_nodes_is_found_and_says_where_its_coordinator_is(
    launch: StartLaunch, follow: Callable[..., subprocess.Popen[str]]
) -> None:
    running = launch("--nnodes", "2", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "job7", script="pass")
    line = ""
    while not line and running.process.poll() is None:  # on a busy machine it is not up as long as one command waits
        follower = follow("job7", "--json", "--kind", "agent_started")
        assert follower.stdout is not None
        line = follower.stdout.readline()
    started = json.loads(line)

    assert started["sentence"].startswith("agent of run job7 started: 1 worker of script0.py; logs in ")
    assert Path(started["data"]["logs"]).is_dir()
    assert started["data"]["endpoint"].startswith("localhost:")
    running.process.terminate()
    assert running.end()[0] == 143


def test_a_run_that_never_came_together_has_a_journal(launch: StartLaunch, tmp_path: Path) -> None:
    running = launch(
        *("--nnodes", "2", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "job7", "--join-timeout", "100ms"),
        *("--log-dir", "logs"),
        script="pass",
    )
    code, _, _ = running.end()

    assert code == 1
    [journal] = tmp_path.glob("logs/job7_*/journal.jsonl")
    assert b'"kind":"journal_closed"' in journal.read_bytes().splitlines()[-1]


def test_modules_are_named_once_however_often_they_are_imported(launch: StartLaunch, tmp_path: Path) -> None:
    ready: list[dict[str, Any]] = []
    for _ in range(20):  # on a busy machine the job may be over before the imports are
        if ready:
            break
        code, _, err = launch("--json", "--preload", "decimal,json,decimal", script="pass").end()
        assert code == 0, err
        told = [json.loads(line) for line in err.splitlines()]
        ready = [each for each in told if each["kind"] == "template_ready"]
    assert [each["sentence"].startswith("imported decimal, json in ") for each in ready] == [True]
