"""The examples run from the line in their README, and survive the death of a worker."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("numpy")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"trainer": "transformers", "accelerate": "accelerate", "lightning": "lightning"}
NEEDS = {"torch_ddp": "torch", "gpt": "torch", "fsdp_llama": "torch", **FRAMEWORKS}
#: What makes an example short.
BRIEF = {
    "numpy_regression": ["--epochs", "4"],
    "torch_ddp": ["--epochs", "2", "--samples", "1600"],
    "gpt": ["--steps", "30"],
    "fsdp_llama": ["--steps", "25"],
    "jax": ["--epochs", "2"],
    "trainer": ["--steps", "12"],
    "accelerate": ["--epochs", "2"],
    "lightning": ["--epochs", "2"],
}
EXAMPLES = sorted(path.parent.name for path in ROOT.glob("examples/*/train.py"))


def test_every_example_is_tried() -> None:
    assert sorted(BRIEF) == EXAMPLES


@pytest.mark.torch
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_from_its_readme_and_survives_a_kill(name: str, tmp_path: Path) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    readme = (ROOT / "examples" / name / "README.md").read_text()
    (line,) = re.findall(r"^holdfast (launch .*)$", readme, re.MULTILINE)
    command = [sys.executable, "-m", "holdfast", *shlex.split(line), *BRIEF[name], "--kill-at", "7"]
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stderr
    if name == "jax" and find_spec("jax") is None:
        assert done.stderr.count("skipped: this example needs JAX") == 1
        return
    assert "done: " in done.stdout
    assert "killed by SIGKILL" in done.stderr
