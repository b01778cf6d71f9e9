"""Real nodes with hang detection: each in a process of its own, and none may be left when the test ends."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.conftest import MARK, launch, marked

__all__ = ["launch"]

#: Runs one node's agent, prints each of its facts as a line, and at last how it ended.
NODE = """
import json, os, sys
from holdfast.agent.options import LocalOptions
from holdfast.facts import facts
from holdfast.launcher.api import LaunchConfig, run_agent
from holdfast.timer import watchdog
from holdfast.timer.hang import HangOptions
from holdfast.workers import Script

watchdog.ELSEWHERE_WAIT_S = float(os.environ.get("HOLDFAST_TEST_ELSEWHERE_WAIT_S", watchdog.ELSEWHERE_WAIT_S))

def tell(kind, sentence, data):
    # In one piece: facts come from several threads.
    sys.stdout.write(json.dumps({"kind": kind, "sentence": sentence, "data": data}, default=str) + "\\n")
    sys.stdout.flush()

script, config, hang = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
facts.listen(lambda fact: tell(fact.kind, fact.sentence, fact.data))
config["local_options"] = LocalOptions(hang=HangOptions(**hang))
report = run_agent(LaunchConfig(**config), Script(script), [])
verdict = report.verdict.to_json() if report.verdict is not None else None
tell("end", report.outcome.reason, {"exit_code": report.exit_code, "verdict": verdict})
"""


class Node:
    """One agent in its own process; workers write to stderr."""

    def __init__(self, arguments: list[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, *arguments], stdout=subprocess.PIPE, env=environ, text=True
        )
        self.facts: list[dict[str, Any]] = []

    def wait_fact(self, kind: str) -> dict[str, Any]:
        """Read on up to a fact of a kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.facts.append(json.loads(line))
                if self.facts[-1]["kind"] == kind:
                    return self.facts[-1]
        raise AssertionError(f"no fact '{kind}': {self.facts}")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts nodes; fails the test that leaves a process behind."""
    mark = secrets.token_hex(8)
    nodes: list[Node] = []

    def start(
        script: str, hang: dict[str, Any], *, workers: int, env: dict[str, str] | None = None, **config: Any
    ) -> Node:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        settings = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": workers, "rdzv_endpoint": "localhost:0", **config}
        environ = {**os.environ, MARK: mark, "HOLDFAST_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
        environ |= {"TMPDIR": str(tmp_path), **(env or {})}
        nodes.append(Node([str(path), json.dumps(settings), json.dumps(hang)], environ))
        return nodes[-1]

    yield start
    for each in nodes:
        each.process.kill()
        each.process.wait()
        if each.process.stdout is not None:
            each.process.stdout.close()
    left = marked(mark)
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes were left behind: {left}"
