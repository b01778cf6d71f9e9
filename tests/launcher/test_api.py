"""Launching from Python: configs that cannot be, and functions that exist only in a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.launcher import LaunchConfig
from holdfast.launcher.api import SHUTDOWN_VARIABLE, shutdown_timeout
from holdfast.workers.functions import lives_only_here
from holdfast.workers.plan import Function

SESSION = """
import os
from holdfast.launcher import LaunchConfig, elastic_launch
class Thing:
    size = 10

def train(thing):
    return int(os.environ["RANK"]) + thing.size

config = LaunchConfig(1, 1, 2, rdzv_endpoint="localhost:0", max_restarts=0)
print("results", elastic_launch(config, train)(Thing()), elastic_launch(config, lambda: 7)())
"""
USES_CUDA = """
import sys, types
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
"""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"nproc_per_node": "two"}, "nproc_per_node must be a whole number, not 'two'"),
        ({"nproc_per_node": "2"}, "nproc_per_node must be a whole number, not '2'"),
        ({"nproc_per_node": 1.5}, "nproc_per_node must be a whole number, not 1.5"),
        ({"nproc_per_node": 0}, "nproc_per_node is 0 but must be at least 1"),
        ({"min_nodes": 0}, "min_nodes is 0 but must be at least 1"),
        ({"min_nodes": 3}, "max_nodes is 2 but must be at least min_nodes, 3"),
        ({"max_nodes": None}, "max_nodes must be a whole number, not None"),
        ({"max_restarts": -1}, "max_restarts is -1 but must be at least 0"),
        ({"monitor_interval": 0}, "monitor_interval is 0 but must be above 0"),
        ({"monitor_interval": "1"}, "monitor_interval must be a number of seconds, not '1'"),
        ({"shutdown_timeout": -1}, "shutdown_timeout is -1 but must be at least 0"),
        ({"run_id": 7}, "run_id must be text, not 7"),
        ({"rdzv_configs": "a=1"}, "rdzv_configs must be a dictionary, not 'a=1'"),
        ({"start_method": "thread"}, "start_method is 'thread' but must be one of spawn, fork, forkserver"),
    ],
)
def test_a_config_that_cannot_be_is_refused_when_it_is_made(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        LaunchConfig(**{"min_nodes": 1, "max_nodes": 2, "nproc_per_node": 1, **values})

    assert str(caught.value) == sentence


def test_whole_numbers_of_any_kind_are_taken() -> None:
    class Seven:
        def __index__(self) -> int:
            return 7

    assert LaunchConfig(1, 1, Seven()).nproc_per_node == 7  # type: ignore[arg-type]


def test_workers_get_the_time_to_end_that_torchruns_variable_says() -> None:
    plain, given = LaunchConfig(1, 1, 1), LaunchConfig(1, 1, 1, shutdown_timeout=7)
    variable = {SHUTDOWN_VARIABLE: "90"}

    assert [shutdown_timeout(plain, {}), shutdown_timeout(plain, variable), shutdown_timeout(given, variable)] == [
        30,
        90,
        7,
    ]
    with pytest.raises(UsageError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'soon'"):
        shutdown_timeout(plain, {SHUTDOWN_VARIABLE: "soon"})


def session(tmp_path: Path, how: list[str], text: str) -> str:
    done = subprocess.run(
        [sys.executable, *how],
        input=text,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")},
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("how", [["-"], ["-i"], ["-c", SESSION]], ids=["stdin", "prompt", "command"])
def test_functions_of_a_session_run(tmp_path: Path, how: list[str]) -> None:
    said = session(tmp_path, how, SESSION)

    assert "results {0: 10, 1: 11} {0: 7, 1: 7}" in said
    assert "Traceback" not in said


def test_functions_of_a_session_that_uses_cuda_are_refused_by_one_sentence(tmp_path: Path) -> None:
    said = session(tmp_path, ["-"], USES_CUDA + SESSION)

    assert "UsageError: 'train' exists only in this session, so workers must be forked from it, and CUDA" in said
    assert "put 'train' into a file and import it" in said


def test_a_function_of_a_module_is_started_anew() -> None:
    assert not lives_only_here(Function(test_whole_numbers_of_any_kind_are_taken, ()))
