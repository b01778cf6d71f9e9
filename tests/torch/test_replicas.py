"""Copies of a model that are split over workers: a dead worker takes its copy out, and not a bit is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from holdfast.errors import UsageError
from holdfast.torch import TorchState, elastic
from holdfast.torch.replicas import _divide
from holdfast.torch.sharded import as_part_of, is_sharded, own_part
from holdfast.wire.ports import HeldPort
from holdfast.workers.plan import MEMBER_FILE_VARIABLE

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp_llama" / "train.py"
SHARDER = Path(__file__).parent / "sharder.py"
TENSOR_PARALLEL = Path(__file__).parent / "tensor_parallel.py"


def train(home: Path, *options: str) -> tuple[str, str]:
    """Run the example with two copies of two workers; returns its last line and what the agent said."""
    launch = ["launch", "--nproc-per-node", "4", "--max-restarts", "3", "--preload", "torch,torch.distributed.fsdp"]
    command = [sys.executable, "-m", "holdfast", *launch, str(EXAMPLE), "--steps", "20", "--min-workers", "4", *options]
    environ = {**os.environ, "HOLDFAST_HOME": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    (last,) = re.findall(r"^done: .*$", done.stdout, re.MULTILINE)
    return last, done.stderr


@pytest.mark.slow
def test_a_killed_worker_is_replaced_with_its_copy_and_not_a_bit_is_different(tmp_path: Path) -> None:
    expected, _ = train(tmp_path)
    killed, said = train(tmp_path, "--kill-at", "7")

    assert killed == expected
    assert "replaced ranks 2, 3, the others go on" in said

    on_nodes, said = train_on_nodes(tmp_path, "--kill-at", "7")

    assert on_nodes == expected
    assert "replaced rank 3, the others go on" in said
    assert "replaced rank 2, the others go on" in said


def train_on_nodes(home: Path, *options: str) -> tuple[str, str]:
    """Run the example on four nodes of one worker: each copy is on two of them."""
    said = launch_nodes(home, 4, 1, str(EXAMPLE), "--steps", "20", "--min-workers", "4", *options)
    (last,) = re.findall(r"^done: .*$", said, re.MULTILINE)
    return last, said


def launch_nodes(home: Path, count: int, workers: int, *script: str) -> str:
    """Run a script on so many nodes with so many workers each; returns what all of them said."""
    held = HeldPort()
    where = f"127.0.0.1:{held.port}"
    environ = {**os.environ, "HOLDFAST_HOME": str(home), "OMP_NUM_THREADS": "1"}
    launch = ["launch", "--nnodes", str(count), "--nproc-per-node", str(workers), "--max-restarts", "3"]
    launch += ["--rdzv-id", "nodes", "--rdzv-endpoint", where, "--rdzv-conf", "is_host=false"]
    command = [*launch, "--preload", "torch,torch.distributed.fsdp", *script]
    with (home / "serve.log").open("wb") as log:
        serving = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "serve", where], env=environ, stdout=log, stderr=log
        )
    try:
        nodes = [
            subprocess.Popen(
                [sys.executable, "-m", "holdfast", *command],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(count)
        ]
        said = [node.communicate(timeout=400)[0] for node in nodes]
    finally:
        serving.terminate()
        serving.wait(240)
        held.close()
    assert [node.returncode for node in nodes] == [0] * count, "\n".join(said)
    return "\n".join(said)


@pytest.mark.slow
def test_nodes_that_split_a_model_by_tensor_parallelism_train_it_as_one_worker_would(tmp_path: Path) -> None:
    said = launch_nodes(tmp_path, 2, 2, str(TENSOR_PARALLEL), "node", "12", "7")
    told = [json.loads(line) for line in said.splitlines() if line[:1] == "{"]

    assert sorted((each["rank"], each["part"]) for each in told) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert "killed by SIGKILL" in said
    assert len({each["model"] for each in told}) == 1
    for each in told:
        assert each["off"] < 1e-12, "the gradients are not those of the whole model"
        assert each["used"] == [12 * 12 / 48], "samples are dealt out to replicas, each sample once an epoch"
        place = [each["rank"], each["part"]]
        assert each["places"] == [["[[0, 1], [2, 3]]", str(place), ["replicate", "shard"]]]


def restore(home: Path, size: int) -> list[dict[str, Any]]:
    """Train one copy on so many workers, or restore what an earlier launch has saved; returns what each worker has."""
    launch = ["launch", "--nproc-per-node", str(size), "--preload", "torch,torch.distributed.fsdp"]
    command = [sys.executable, "-m", "holdfast", *launch, str(SHARDER), str(home / "saved"), str(size), "8"]
    environ = {**os.environ, "HOLDFAST_HOME": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"), key=lambda it: it["part"])


@pytest.mark.slow
def test_what_a_copy_of_two_has_saved_copies_of_three_and_four_restore(tmp_path: Path) -> None:
    saved = restore(tmp_path, 2)

    for size, rows in ((3, [3, 3, 1]), (4, [2, 2, 2, 1])):
        restored = restore(tmp_path, size)
        assert [each["rows"] for each in restored] == [[count, 5] for count in rows]
        for name in ("progress", "model", "moments", "wide", "note"):
            assert {each[name] for each in restored} == {saved[0][name]}


@pytest.mark.parametrize(
    ("of", "local_rank", "found"),
    [("node", 3, (4, 0, 3)), (2, 3, (2, 1, 1)), ("2", 0, (2, 0, 0)), (1, 2, (1, 2, 0))],
)
def test_workers_of_a_node_are_divided_into_copies(
    monkeypatch: pytest.MonkeyPatch, of: str | int, local_rank: int, found: tuple[int, int, int]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))

    assert _divide(of) == found


@pytest.mark.parametrize(("rank", "found"), [(0, (8, 0, 0)), (5, (8, 0, 5)), (14, (8, 1, 6))])
def test_workers_of_neighbouring_nodes_are_one_copy(
    monkeypatch: pytest.MonkeyPatch, rank: int, found: tuple[int, int, int]
) -> None:
    for name, value in (("LOCAL_WORLD_SIZE", 4), ("LOCAL_RANK", rank % 4), ("RANK", rank), ("WORLD_SIZE", 16)):
        monkeypatch.setenv(name, str(value))

    assert _divide(8) == found


@pytest.mark.parametrize(("of", "world_size"), [(6, 12), (8, 12)])
def test_nodes_that_do_not_come_out_even_are_refused(monkeypatch: pytest.MonkeyPatch, of: int, world_size: int) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("WORLD_SIZE", str(world_size))

    with pytest.raises(
        UsageError, match=f"replicas of {of} workers do not fit nodes of 4, {world_size} workers in all"
    ):
        _divide(of)


@pytest.mark.parametrize(("of", "said"), [(3, "number that divides 4"), (0, "does not fit"), ("host", "not 'host'")])
def test_a_division_that_does_not_come_out_even_is_refused(
    monkeypatch: pytest.MonkeyPatch, of: str | int, said: str
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")

    with pytest.raises(UsageError, match=said):
        _divide(of)


def test_a_plain_tensor_is_a_part_of_its_own() -> None:
    import torch

    plain = torch.ones(3, requires_grad=True)

    assert not is_sharded(plain)
    assert own_part(plain).data_ptr() == plain.data_ptr()
    assert as_part_of(plain, torch.zeros(3)) is plain


def test_the_backend_that_is_asked_for_is_the_replicas_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv(MEMBER_FILE_VARIABLE, str(tmp_path / "0" / "member"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    with pytest.raises(UsageError, match="gloo or nccl, not through 'ring'"):
        elastic(TorchState(model=torch.nn.Linear(1, 1)), backend="ring", replicas_of="node")
