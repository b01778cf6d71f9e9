"""`holdfast runs` and `holdfast stacks`, on real launches."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.events.index import live_run
from tests.cli.conftest import Invoke

STEPS = """
import os, signal, time, holdfast
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(6):
    time.sleep(0.05)  # a step's work, which is lost with the worker and made again
    holdfast.heartbeat(step)
    if first and step == 3 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_end_of_a_run_and_the_list_of_runs_tell_the_same(invoke: Invoke, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    assert "no run" in invoke("stacks").err
    none = invoke("runs")
    assert none.out.splitlines()[0].split()[:3] == ["RUN", "STARTED", "OUTCOME"]
    assert "no run has left a journal on this host yet; `holdfast launch`" in none.err

    ended = subprocess.run(
        ["holdfast", "launch", "--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-id", "seven", str(script)],
        capture_output=True,
        text=True,
        check=True,
    )

    first, goodput, logs = ended.stderr.splitlines()[-3:]
    assert first.startswith("holdfast: finished in ")
    assert first.endswith("2 workers, 1 restart")
    assert goodput.split()[0] == "goodput"
    assert "to rank 1 on " in goodput
    assert Path(logs.removeprefix("  logs     ")).is_dir()
    (run,) = invoke("runs", "--json").data
    assert (run["run"], run["outcome"], run["restarts"], run["rounds"]) == ("seven", "succeeded", 1, 2)
    assert 0 < run["goodput"] < 1
    assert sum(run["seconds"].values()) == pytest.approx(run["duration_s"], abs=0.1)
    assert "killed by SIGKILL" in invoke("runs", "sev").out
    assert "run 'seven' succeeded" in invoke("stacks", "seven").err
    assert "run 'seven' succeeded" in invoke("top", "seven").out
    assert "`holdfast runs seven` says where its time went" in invoke("top").err


def test_a_launch_that_finds_no_other_node_has_failed_and_says_why(invoke: Invoke, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    meeting = ("--rdzv-endpoint", "127.0.0.1:0", "--rdzv-conf", "is_host=true", "--join-timeout", "3s")
    launched = subprocess.run(
        ["holdfast", "launch", "--nnodes", "2", *meeting, "--rdzv-id", "alone", str(script)], check=False
    )

    (run,) = invoke("runs", "--json").data

    assert launched.returncode == 1
    assert (run["run"], run["outcome"]) == ("alone", "failed")
    assert "waiting for 1 more" in run["reason"]
    assert "rank -1" not in invoke("events", "alone").out


def wait_started(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Wait until the journal of the newest live run says that its workers have started."""
    events = start("events", "--follow", "--kind", "workers_started")
    assert events.stdout is not None
    assert events.stdout.readline()
    events.kill()


def test_the_stacks_of_a_live_run_need_no_preparation(
    invoke: Invoke, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal\n"
        "def here():\n    print('here', flush=True); signal.pause()\n"
        "def there():\n    print('there', flush=True); signal.pause()\n"
        "there() if os.environ['RANK'] == '2' else here()\n"
    )
    launch = start("launch", "--nproc-per-node", "3", str(script))
    assert launch.stdout is not None
    said = sorted(launch.stdout.readline().strip() for _ in range(3))
    assert said == ["here", "here", "there"]
    wait_started(start)

    stacks = invoke("stacks")

    assert "ranks 0-1:" in stacks.out
    assert "rank 2: not where the others are" in stacks.out
    assert "there (" in stacks.out
    assert live_run() is not None
    os.kill(launch.pid, signal.SIGTERM)
    launch.communicate()
