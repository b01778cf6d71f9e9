"""The collectives of the first torchelastic, in the shapes that its programs use: arrays of bytes, and models."""

from __future__ import annotations

from typing import Any

from holdfast.train import collectives as _ours
from holdfast.train.collectives import (
    all_gather_return_max_long,
    broadcast_bool,
    broadcast_float_list,
    broadcast_long,
)

__all__ = [
    "all_gather_return_max_long",
    "broadcast_binary",
    "broadcast_bool",
    "broadcast_float_list",
    "broadcast_long",
    "broadcast_model",
]


def broadcast_binary(data: Any, src_rank: int) -> Any:
    """Give all workers the array of bytes of the worker `src_rank`; the others may give None."""
    import numpy

    sent = None if data is None else numpy.ascontiguousarray(data).tobytes()
    return numpy.frombuffer(_ours.broadcast_binary(sent, src_rank), dtype=numpy.uint8).copy()


def broadcast_model(src_rank: int, model: Any) -> None:
    """Give all workers the parameters of the worker `src_rank`, through torch's process group."""
    import torch

    dist: Any = torch.distributed
    for work in [dist.broadcast(each.data, src=src_rank, async_op=True) for each in model.parameters()]:
        work.wait()
