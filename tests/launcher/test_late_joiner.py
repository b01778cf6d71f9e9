"""A node that comes while the others are still starting their workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.wire.ports import HeldPort
from tests.launcher.conftest import Launch

StartLaunch = Callable[..., Launch]

#: Found by A alone, which so takes its time until the test lets it go on.
SLOW_MODULE = """
import os, pathlib, time
while os.environ.get("GO") and not pathlib.Path(os.environ["GO"]).exists():
    time.sleep(0.01)
"""
SCRIPT = """
    import os, signal
    while os.environ["WORLD_SIZE"] == "1":
        signal.pause()
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""


def wait_fact(launch: Launch, kind: str, piece: str = "") -> dict[str, Any]:
    """Read facts from stderr up to one of a kind whose sentence has a piece."""
    assert launch.process.stderr is not None
    for line in launch.process.stderr:
        fact: dict[str, Any] = json.loads(line)
        if fact["kind"] == kind and piece in fact["sentence"]:
            return fact
    raise AssertionError(f"ended without {kind} '{piece}'")


def test_a_node_that_joins_before_the_first_workers_are_up_is_let_in(launch: StartLaunch, tmp_path: Path) -> None:
    """The round is broken for it while the other agent still waits for its template; that word must not be lost."""
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    go = tmp_path / "go"
    port = HeldPort()
    flags = ["--json", "--nnodes", "1:2", "--last-call", "0.1", "--preload", "slow_module", "--rdzv-id", "late"]
    flags += ["--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{port.port}", "--rdzv-conf"]
    first = launch(*flags, "is_host=true", script=SCRIPT, PYTHONPATH=str(tmp_path), GO=str(go))
    wait_fact(first, "round_sealed", "1 node")
    second = launch(*flags, "is_host=false", script=SCRIPT, PYTHONPATH=str(tmp_path))
    wait_fact(first, "round_broken", "joined")
    go.touch()
    ends = [each.end() for each in (first, second)]
    port.close()

    assert [end[:2] for end in ends] == [(0, "rank 0 of 2\n"), (0, "rank 1 of 2\n")]
