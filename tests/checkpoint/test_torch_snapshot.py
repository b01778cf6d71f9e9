"""Tensors in snapshots: saved from where they are, mapped back without a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")


def test_tensors_of_every_kind_come_back_with_their_bits(tmp_path: Path) -> None:
    tree = {
        "f": torch.randn(5, 7),
        "b": torch.randn(9).to(torch.bfloat16),
        "t": torch.arange(12).reshape(3, 4).t(),
        "e": torch.empty(0, 3),
        "s": torch.tensor(2.5),
    }
    with Checkpointer([MemoryTier(tmp_path / "m"), StorageTier(tmp_path / "s")]) as checkpoints:
        checkpoints.save(1, tree)
        checkpoints.wait()
        near = checkpoints.restore()
    with Checkpointer([StorageTier(tmp_path / "s")]) as checkpoints:
        far = checkpoints.restore()

    for found in (near, far):
        assert found is not None
        for name, tensor in tree.items():
            assert found.tree[name].dtype == tensor.dtype
            assert torch.equal(found.tree[name], tensor)


def test_a_large_state_is_copied_by_several_threads_and_is_the_same(tmp_path: Path) -> None:
    tree = {"a": torch.randn(5_000_000), "b": torch.randn(15_000_001)}
    with Checkpointer([MemoryTier(tmp_path)]) as checkpoints:
        checkpoints.save(1, tree)
        found = checkpoints.restore()

    assert found is not None
    assert torch.equal(found.tree["a"], tree["a"])
    assert torch.equal(found.tree["b"], tree["b"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu_are_copied_through_pinned_memory(tmp_path: Path) -> None:
    from holdfast.checkpoint import device

    tree = {"w": torch.randn(1000, 1000, device="cuda"), "t": torch.arange(12, device="cuda").reshape(3, 4).t()}
    with Checkpointer([MemoryTier(tmp_path)]) as checkpoints:
        for step in range(3):
            tree["w"] += 1
            checkpoints.save(step, tree)
        assert len(device._pinned) == 2
        found = checkpoints.restore()

    assert found is not None
    assert torch.equal(found.tree["w"], tree["w"].cpu())
    assert torch.equal(found.tree["t"], tree["t"].cpu())
    assert device._pinned == {}
