"""A process's rank among the workers, whichever launcher has started it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("error")
from pathlib import Path
from holdfast.torch import ranks
device = ranks.init_pg("gloo")
out, name = Path(sys.argv[1]), f"rank {ranks.rank()}"
said = [ranks.rank(), ranks.world_size(), ranks.local_rank(), ranks.is_rank0(), ranks.is_local_rank0(), str(device)]
with ranks.on_rank0_first():
    # The first one does not wait, and the others find what it has left.
    (out / "first").touch() if ranks.is_rank0() else said.append((out / "first").exists())
with ranks.on_local_rank0_first():
    (out / "local").touch() if ranks.is_local_rank0() else said.append((out / "local").exists())
(out / name).write_text(json.dumps(said))
"""


def test_workers_know_their_ranks_and_the_first_goes_first(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "holdfast", "launch", "--nproc-per-node", "2", "--log-dir", str(tmp_path / "logs")]

    done = subprocess.run(
        [*launch, str(tmp_path / "script.py"), str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "rank 0").read_text()) == [0, 2, 0, True, True, "cpu"]
    assert json.loads((tmp_path / "rank 1").read_text()) == [1, 2, 1, False, False, "cpu", True, True]


def test_a_process_without_a_launcher_is_the_only_one(tmp_path: Path) -> None:
    code = (
        "from holdfast.torch import ranks\n"
        "assert (ranks.rank(), ranks.world_size(), ranks.local_rank(), ranks.is_rank0()) == (0, 1, 0, True)\n"
        "with ranks.on_rank0_first(): pass\n"
        "ranks.init_pg('gloo')\n"
        "assert (ranks.rank(), ranks.world_size()) == (0, 1)\n"
        "assert ranks.local_rank() == 0\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300, env={}
    )

    assert done.returncode == 0, done.stderr
    assert "no launcher has started this script, so it is a group of one process" in done.stderr
    assert "there is a process group but no LOCAL_RANK" in done.stderr
