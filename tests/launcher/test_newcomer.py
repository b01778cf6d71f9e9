"""A node that joins a round which runs: the others work on while it gets ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.wire.ports import HeldPort
from tests.launcher.conftest import Launch
from tests.launcher.test_late_joiner import SCRIPT, SLOW_MODULE, wait_fact

StartLaunch = Callable[..., Launch]


def test_a_newcomer_imports_before_it_interrupts_the_others(launch: StartLaunch, tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    go = tmp_path / "go"
    port = HeldPort()
    flags = ["--json", "--nnodes", "1:2", "--last-call", "0.1", "--rdzv-id", "late", "--rdzv-backend", "holdfast"]
    flags += ["--rdzv-endpoint", f"127.0.0.1:{port.port}"]
    first = launch(*flags, "--rdzv-conf", "is_host=true", script=SCRIPT)
    wait_fact(first, "workers_started")
    slow = ["--preload", "slow_module", "--rdzv-conf", "is_host=false"]
    second = launch(*flags, *slow, script=SCRIPT, PYTHONPATH=str(tmp_path), GO=str(go))
    wait_fact(second, "waiting", "before asking to be let in")
    ready_at = time.time()
    go.touch()
    broken = wait_fact(first, "round_broken", "joined")
    ends = [each.end() for each in (first, second)]
    port.close()

    assert broken["time"] >= ready_at
    assert [code for code, _, _ in ends] == [0, 0]
