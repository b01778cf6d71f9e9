"""A launched job under connections that prove nothing; `bench.flood` does the same with 100,000 of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.conftest import Launch

# `bench` lies beside `tests` and is not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

StartLaunch = Callable[..., Launch]


def test_a_job_under_garbage_notices_nothing_and_its_log_stays_short() -> None:
    from bench.flood import garbage_cases

    cases = {case.name: case for case in garbage_cases(2000)}

    assert [case.name for case in cases.values() if case.ok is False] == []
    assert cases["log lines"].ours is not None
    assert cases["log lines"].ours < 100


def test_a_worker_is_started_again_while_silent_connections_take_all_that_they_can() -> None:
    """The hard limit on open files is lower than the number of connections."""
    from bench.flood import silence_cases

    cases = silence_cases(600, files_max=400)

    assert [case.name for case in cases if case.ok is False] == []


@pytest.mark.parametrize("preload", ["none", "json"])
def test_workers_have_the_limit_on_open_files_that_the_user_had(
    launch: StartLaunch, tmp_path: Path, preload: str
) -> None:
    """The agent raises its own; programs that call select() break on descriptors over 1,023."""
    script = tmp_path / "limits.py"
    script.write_text(
        "import resource, pathlib, os, json\n"
        "soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "pid = int(os.environ['LAUNCHER'])\n"
        "lines = pathlib.Path(f'/proc/{pid}/limits').read_text().splitlines()\n"
        "agent = next(line.split()[3] for line in lines if line.startswith('Max open files'))\n"
        "print(json.dumps([soft, int(agent)]))\n"
    )
    shell = tmp_path / "launch.sh"
    shell.write_text(
        "ulimit -S -n 200; ulimit -H -n 3000; export LAUNCHER=$$\n"
        f"exec {sys.executable} -m holdfast launch --preload {preload} {script}\n"
    )
    # The shell becomes the launch, so that the script knows its pid.
    launched = launch("--no-python", "--standalone", "/bin/sh", str(shell))
    code, out, err = launched.end()

    assert code == 0, err
    assert json.loads(out.splitlines()[-1]) == [200, 3000]
