"""Parts of sharded tensors in checkpoints; one process takes the part of each worker in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from holdfast.checkpoint import Checkpointer, FlatSlice, StorageTier, read_dcp, write_dcp  # noqa: E402
from holdfast.torch.sharded import as_slice, from_slices, own_part  # noqa: E402
from holdfast.torch.state import TorchState  # noqa: E402

pytestmark = pytest.mark.torch
TALL, WIDE = torch.arange(35.0).reshape(7, 5), torch.arange(30.0).reshape(3, 10)


@contextmanager
def one_of(rank: int, world: int) -> Iterator[DeviceMesh]:
    """Be one of several workers, without the others."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield DeviceMesh("cpu", list(range(world)))
    finally:
        dist.destroy_process_group()


def make_state(mesh: DeviceMesh, scale: float) -> TorchState:
    def spread(tensor: Any, placement: Any) -> Any:
        return distribute_tensor(tensor * scale, mesh, [placement], src_data_rank=None)

    tall = torch.nn.Parameter(spread(TALL, Shard(0)))
    optimizer = torch.optim.AdamW([tall])
    if scale:
        optimizer.state[tall] = {"step": torch.tensor(3.0), "exp_avg": spread(TALL + 1, Shard(0))}
    return TorchState(
        tall=tall, optimizer=optimizer, wide=spread(WIDE, Shard(1)), all=spread(WIDE, Replicate()), n=scale
    )


def save(folder: Path, world: int) -> None:
    for rank in range(world):
        with one_of(rank, world) as mesh, Checkpointer([StorageTier(folder)]) as checkpoints:
            assert checkpoints.save(5, make_state(mesh, 1.0).capture_to_save(), (rank, world))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_a_state_that_two_have_saved_is_restored_by_any_number(tmp_path: Path, world: int) -> None:
    save(tmp_path, 2)
    told: list[bytes] = []
    for rank in range(world):
        heard = iter(list(told))

        def gather(mine: bytes, rank: int = rank, heard: Iterator[bytes] = heard) -> list[bytes]:
            if rank == 0:  # storage is listed by the first worker alone
                told.append(mine)
            return [mine if rank == 0 else next(heard)]

        with one_of(rank, world) as mesh, Checkpointer([StorageTier(tmp_path)], gather=gather) as checkpoints:
            state, wanted = make_state(mesh, 0.0), make_state(mesh, 1.0)
            restored = checkpoints.restore((rank, world), into=state)

            assert restored is not None
            assert state.n == 1.0
            for name in ("tall", "wide", "all"):
                assert torch.equal(own_part(getattr(state, name)), own_part(getattr(wanted, name)))
            moments, wanted_moments = state.optimizer.state[state.tall], wanted.optimizer.state[wanted.tall]
            assert torch.equal(own_part(moments["exp_avg"]), own_part(wanted_moments["exp_avg"]))
            assert moments["step"] == 3.0


def test_a_snapshot_for_a_counterpart_has_plain_parts() -> None:
    with one_of(1, 2) as mesh:
        parts = make_state(mesh, 1.0).capture_snapshot()["parts"]

    assert torch.equal(parts["wide"], WIDE[:, 5:])


def test_a_part_says_where_it_belongs() -> None:
    with one_of(1, 2) as mesh:
        tall = distribute_tensor(TALL, mesh, [Shard(0)], src_data_rank=None)
        wide = distribute_tensor(WIDE, mesh, [Shard(1)], src_data_rank=None)
        first, second = as_slice(tall, own_part(tall).clone()), as_slice(wide, own_part(wide).clone())

    assert (first.start, first.shape, first.unit, first.dim) == (20, (7, 5), 5, 0)
    assert (second.start, second.shape, second.unit, second.dim) == (15, (10, 3), 3, 1)
    assert torch.equal(from_slices({"x": [second]})["x"][0], WIDE[:, 5:])


def test_a_mesh_of_two_dimensions_is_saved_as_it_is() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
        tensor = distribute_tensor(TALL, mesh, [Shard(0), Shard(1)], src_data_rank=None)
        part = as_slice(tensor, own_part(tensor).clone())
    finally:
        dist.destroy_process_group()

    assert not isinstance(part, FlatSlice)
    assert torch.equal(part, TALL[:4, :3])


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_sharded_checkpoint_becomes_one_of_torchs(tmp_path: Path) -> None:
    save(tmp_path / "ours", 2)
    with Checkpointer([StorageTier(tmp_path / "ours")]) as checkpoints:
        found = checkpoints.restore()
    assert found is not None

    write_dcp(found.tree["parts"], tmp_path / "theirs")

    tree = read_dcp(tmp_path / "theirs")
    assert torch.equal(tree["wide"], WIDE)
    assert torch.equal(tree["tall"], TALL)
