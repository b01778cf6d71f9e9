"""The first torchelastic's `distributed`: small values for all workers, over the round's ring or torch's default group.

Inside `State.sync` the ring of the round is used. Everywhere else it is torch's default process group, as in the
original. Every worker calls the same function in the same order.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Protocol

from holdfast.errors import UsageError
from holdfast.train.trainer import current

__all__ = [
    "all_gather_return_max_long",
    "broadcast_binary",
    "broadcast_bool",
    "broadcast_float_list",
    "broadcast_long",
    "broadcast_model",
]


class _Group(Protocol):
    """What carries bytes between the workers."""

    def broadcast(self, data: bytes | None, source: int) -> bytes | memoryview | bytearray:
        """Return the bytes of one worker."""

    def all_gather(self, data: bytes) -> list[Any]:
        """Return the bytes of every worker, by rank."""


class _TorchGroup:
    """Torch's default group; sizes go first, because all tensors of a collective have one size."""

    def __init__(self, dist: Any) -> None:
        import torch

        self._dist, self._torch = dist, torch
        self._device = "cuda" if dist.get_backend() == "nccl" else "cpu"

    def broadcast(self, data: bytes | None, source: int) -> bytes:
        size = self._torch.tensor([len(data or b"")], dtype=self._torch.int64, device=self._device)
        self._dist.broadcast(size, source)
        padded = self._tensor(data or b"", int(size.item()))
        self._dist.broadcast(padded, source)
        return bytes(padded.cpu().numpy())

    def all_gather(self, data: bytes) -> list[bytes]:
        world = range(self._dist.get_world_size())
        size = self._torch.tensor([len(data)], dtype=self._torch.int64, device=self._device)
        sizes = [self._torch.zeros_like(size) for _ in world]
        self._dist.all_gather(sizes, size)
        mine = self._tensor(data, max(int(each.item()) for each in sizes))
        found = [self._torch.empty_like(mine) for _ in world]
        self._dist.all_gather(found, mine)
        return [bytes(each.cpu().numpy())[: int(size.item())] for each, size in zip(found, sizes, strict=True)]

    def _tensor(self, data: bytes, size: int) -> Any:
        padded = bytearray(data.ljust(size, b"\0")[:size])
        if not padded:
            return self._torch.empty(0, dtype=self._torch.uint8, device=self._device)
        return self._torch.frombuffer(padded, dtype=self._torch.uint8).to(self._device)


def _group() -> _Group:
    trainer = current()
    if trainer is not None:
        return trainer.ring
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return _TorchGroup(dist)
    raise UsageError(
        "there is no group to use: call this inside State.sync, or after init_process_group of torch.distributed"
    )


def broadcast_long(value: int, src_rank: int) -> int:
    """Give all workers the integer of the worker `src_rank`."""
    return int(bytes(_group().broadcast(str(value).encode(), src_rank)))


def broadcast_bool(value: bool, src_rank: int) -> bool:
    """Give all workers the truth value of the worker `src_rank`."""
    return bool(broadcast_long(int(value), src_rank))


def broadcast_float_list(values: list[float], src_rank: int) -> list[float]:
    """Give all workers the numbers of the worker `src_rank`."""
    data = bytes(_group().broadcast(struct.pack(f"<{len(values)}d", *values), src_rank))
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def broadcast_binary(data: Any, src_rank: int) -> Any:
    """Give all workers the array of bytes of the worker `src_rank`; the others may give None."""
    import numpy

    sent = None if data is None else numpy.ascontiguousarray(data).tobytes()
    return numpy.frombuffer(bytes(_group().broadcast(sent, src_rank)), dtype=numpy.uint8).copy()


def all_gather_return_max_long(value: int) -> tuple[int, int]:
    """Return the rank that has the greatest integer, the lowest of several, and that integer."""
    values = [int(bytes(text)) for text in _group().all_gather(str(value).encode())]
    rank = max(range(len(values)), key=lambda each: (values[each], -each))
    return rank, values[rank]


def broadcast_model(src_rank: int, model: Any) -> None:
    """Give all workers the parameters of the worker `src_rank`, through torch's process group."""
    import torch

    dist: Any = torch.distributed
    for work in [dist.broadcast(each.data, src=src_rank, async_op=True) for each in model.parameters()]:
        work.wait()
