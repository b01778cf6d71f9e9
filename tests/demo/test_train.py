"""The demo's training script, as a person would use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.demo import train
from holdfast.demo.story import DRIFT_MAX
from holdfast.store import MemoryStore


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_shares_of_all_ranks_make_the_same_gradient(world: int) -> None:
    weights = [1.0, 2.0, 3.0, 4.0]
    shares = [train.share(weights, 5, rank, world) for rank in range(world)]

    assert [sum(column) for column in zip(*shares, strict=True)] == pytest.approx(train.share(weights, 5, 0, 1))


def test_sums_are_the_same_everywhere_and_leave_no_key() -> None:
    store = MemoryStore()
    values = [[float(rank), 0.1 * rank] for rank in range(3)]

    with ThreadPoolExecutor(3) as pool:
        sums = list(pool.map(lambda rank: train.sum_over_ranks(store.clone(), "7", rank, 3, values[rank]), range(3)))

    assert sums[0] == sums[1] == sums[2] == pytest.approx([3.0, 0.3])
    assert store.num_keys() == 0


def test_a_checkpoint_is_read_back_to_the_last_bit(tmp_path: Path) -> None:
    weights = [0.1, 1 / 3, -2.0, 1e-17]
    assert train.load(tmp_path)[0] == 0
    train.save(tmp_path / "new", 12, weights)
    step, loaded = train.load(tmp_path / "new")

    assert step == 12
    assert loaded == weights
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["checkpoint.json"]


@pytest.mark.parametrize("missed", [10, 80, 149])
def test_a_step_that_was_left_out_would_be_noticed_at_the_end(missed: int) -> None:
    weights = [0.0] * len(train.TRUTH)
    for step in range(1, 151):
        if step != missed:
            weights = train.descend(weights, train.share(weights, step, 0, 1)[:-1])

    assert train.distance(weights, train.without_failures(150)) > DRIFT_MAX


def test_launched_by_hand_it_trains_and_goes_on_from_where_it_was(tmp_path: Path) -> None:
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home")}
    outputs = []
    for steps in ("3", "5"):
        command = [sys.executable, "-m", "holdfast", "launch", "--quiet", "--nproc-per-node", "2", "--tee", "3"]
        command += ["--log-dir", str(tmp_path / "logs"), train.__file__, str(tmp_path / "fit"), steps]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)

    assert "step=1 " in outputs[0]
    assert "step=3 " not in outputs[1]
    assert "step=4 " in outputs[1]
    assert float(re.findall(r"drift=(\S+)", outputs[1])[0]) < 1e-12
    assert json.loads((tmp_path / "fit" / "checkpoint.json").read_text())["step"] == 5
