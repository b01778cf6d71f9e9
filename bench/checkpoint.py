"""Checkpoints of 1 GB beside torch's own: how long a step waits for a save, and how long recovery takes.

    python -m bench.checkpoint            a table

The repeats of all of them take turns. Each save, ours or `async_save`'s, is finished before the next begins, so that
none is slowed down by another. New processes do the reading, as after a restart; files are in the page cache
by then, which is the best case for `torch.load`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import Case, Results, median, spread

NEEDS = ("torch",)
TENSORS = 25
#: 1 GB in all.
TENSOR_FLOATS = 10_000_000
GIGABYTE = TENSORS * TENSOR_FLOATS * 4
REPEATS, REPEATS_FULL = 5, 15


def run(full: bool) -> Results:
    shm = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="holdfast-bench-"))
    disk = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        cases = _measure(shm, disk, REPEATS_FULL if full else REPEATS)
    finally:
        shutil.rmtree(shm, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)
    return Results("checkpoints: 1 GB of state in 25 tensors on the CPU", cases, "torch")


# -- saving ------------------------------------------------------------------------------------------------------------


def _measure(shm: Path, disk: Path, repeats: int) -> list[Case]:
    import torch

    from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier

    warnings.simplefilter("ignore")
    tree = {f"p{number}": torch.randn(TENSOR_FLOATS) for number in range(TENSORS)}
    with (
        Checkpointer([MemoryTier(shm / "memory")]) as memory,
        Checkpointer([MemoryTier(shm / "both"), StorageTier(disk / "storage", keep=1)]) as both,
    ):
        prepared_ms = _timed(lambda: (memory.prepare(tree), both.prepare(tree)))
        savers: dict[str, Callable[[int], float]] = {
            "memory": lambda step: _timed(lambda: memory.save(step, tree)),
            "both": lambda step: _blocked_and_done(lambda: both.save(step, tree), lambda _: both.wait()),
            "torch.save": lambda _: _timed(lambda: torch.save(tree, disk / "state.pt")),
            "async_save": lambda step: _async_save(tree, disk / f"dcp{step % 2}", None),
            "async_save, cached": _cached_saver(tree, disk),
        }
        took: dict[str, list[float]] = {name: [] for name in savers}
        for step in range(repeats + 1):
            for name, saver in savers.items():
                ms = saver(step)
                if step:  # the first makes room, for all of them
                    took[name].append(ms)
        memory.wait()
    middle = {name: median(values) for name, values in took.items()}
    seen = {name: spread(values, "ms") for name, values in took.items()}
    return [
        _case("step waits: memory, beside torch.save", middle["memory"], middle["torch.save"], 5, seen["memory"]),
        _case("step waits: memory + storage, beside torch.save", middle["both"], middle["torch.save"], 5, seen["both"]),
        _case("the same beside DCP async_save", middle["both"], middle["async_save"], 1, seen["async_save"]),
        _case(
            "the same beside async_save with a cached stager",
            middle["both"],
            middle["async_save, cached"],
            1,
            seen["async_save, cached"],
        ),
        Case.seen("making room beforehand, for five copies", prepared_ms, "ms"),
        *_recovery(shm, disk, repeats),
        _neighbour(shm, tree),
    ]


def _case(name: str, ours: float, theirs: float, ratio_min: float, note: str) -> Case:
    return Case.beside(name, ours, theirs, "ms", less_is_better=True, ratio_min=ratio_min, note=note)


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _blocked_and_done(begin: Callable[[], Any], finish: Callable[[Any], Any]) -> float:
    began = time.perf_counter()
    handle = begin()
    blocked_ms = (time.perf_counter() - began) * 1000
    finish(handle)
    return blocked_ms


def _async_save(tree: dict[str, Any], folder: Path, stager: Any) -> float:
    import torch.distributed.checkpoint as dcp

    shutil.rmtree(folder, ignore_errors=True)
    return _blocked_and_done(
        lambda: dcp.async_save(tree, checkpoint_id=str(folder), no_dist=True, async_stager=stager),
        lambda future: future.result(),
    )


def _cached_saver(tree: dict[str, Any], disk: Path) -> Callable[[int], float]:
    """A stager that uses its memory again, as far as torch has one without an accelerator."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    stager = DefaultStager(StagingOptions(False, False, False, False))
    return lambda step: _async_save(tree, disk / f"cached{step % 2}", stager)


# -- recovery ---------------------------------------------------------------------------------------------------------

#: Reads the state in one way and says how long it took until it is there, and until it is in tensors of its own.
_READER = """
import json, sys, time
import torch
from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier

how, where = sys.argv[1:3]
own = {f"p{number}": torch.zeros(int(sys.argv[3])) for number in range(int(sys.argv[4]))}
for _ in range(2):
    for tensor in own.values():
        tensor.fill_(1)
began = time.perf_counter()
if how == "torch":
    tree = torch.load(where, weights_only=True)
else:
    tier = MemoryTier(where) if how == "memory" else StorageTier(where)
    tree = Checkpointer([tier]).restore().tree
there = time.perf_counter()
for name, tensor in own.items():
    tensor.copy_(tree[name])
print(json.dumps([(there - began) * 1000, (time.perf_counter() - began) * 1000]))
"""


def _recovery(shm: Path, disk: Path, repeats: int) -> list[Case]:
    ways = {"memory": shm / "memory", "storage": disk / "storage", "torch": disk / "state.pt"}
    took: dict[str, list[list[float]]] = {how: [] for how in ways}
    for _ in range(repeats):
        for how, where in ways.items():
            command = [sys.executable, "-c", _READER, how, str(where), str(TENSOR_FLOATS), str(TENSORS)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            took[how].append(json.loads(done.stdout))
    there = {how: [one[0] for one in values] for how, values in took.items()}
    copied = {how: median(one[1] for one in values) for how, values in took.items()}
    middle = {how: median(values) for how, values in there.items()}
    return [
        _case(
            "recovery: memory, beside torch.load from disk",
            middle["memory"],
            middle["torch"],
            10,
            spread(there["memory"], "ms"),
        ),
        Case.beside("the same and copied into the model", copied["memory"], copied["torch"], "ms", less_is_better=True),
        Case.beside(
            "recovery: storage, beside torch.load",
            middle["storage"],
            middle["torch"],
            "ms",
            less_is_better=True,
            note="every byte is checked",
        ),
    ]


# -- a neighbour's memory --------------------------------------------------------------------------------------------

_VAULT = """
import sys
from pathlib import Path
from holdfast.checkpoint import Vault
from holdfast.wire.address import Endpoint

vault = Vault("bench", secret=b"bench", folder=Path(sys.argv[1]), name="b", host="b", bytes_max=1 << 40)
print(vault.open(Endpoint("127.0.0.1", 0)), flush=True)
sys.stdin.read()
vault.close()
"""


def _neighbour(shm: Path, tree: dict[str, Any]) -> Case:
    """How long the background takes to have a copy in another process's vault, over loopback."""
    from holdfast.checkpoint import Checkpointer, NeighbourTier
    from holdfast.checkpoint.vault_messages import VaultAddress

    with subprocess.Popen(
        [sys.executable, "-c", _VAULT, str(shm / "vaults" / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        tier = NeighbourTier(lambda: [VaultAddress("b", "b", address)], "a", secret=b"bench")
        with Checkpointer([tier]) as checkpoints:
            took = [_timed(lambda step=step: (checkpoints.save(step, tree), checkpoints.wait())) for step in range(4)]
        process.communicate()
    rate = GIGABYTE / 1e9 / (min(took) / 1000)
    return Case.seen("a copy in a neighbour's memory, in the background", median(took), "ms", f"best {rate:.2g} GB/s")


if __name__ == "__main__":
    print(run("--full" in sys.argv))
