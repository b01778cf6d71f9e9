"""Tensors of which this worker holds a part: torch's `DTensor`, as `fully_shard` and tensor parallelism make them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import torch

from holdfast.checkpoint.layout import FlatSlice


def is_sharded(value: Any) -> bool:
    """Whether a value is a tensor of which this worker holds a part."""
    # A program that has one has imported its module, and others need not.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def own_part(value: torch.Tensor) -> torch.Tensor:
    """Return the part that this worker holds, in place; all of a plain tensor."""
    part: torch.Tensor = value._local_tensor if is_sharded(value) else value  # type: ignore[attr-defined]
    return part.detach()


def align_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Share every gradient out as its parameter is; all workers of a replica call it together.

    With tensor parallelism some gradients are terms of a sum that these workers have yet to make, such as those of a
    normalisation of which each has had some positions only.
    """
    for parameter in parameters:
        gradient: Any = parameter.grad
        if is_sharded(gradient) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
            parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]


def as_slice(value: torch.Tensor, copied: torch.Tensor) -> Any:
    """Return a copy of this worker's part together with its place in the whole, if it is split along one dimension.

    Such a part can be saved by one number of workers and restored by another. A part of anything else stays plain.
    """
    if not is_sharded(value):
        return copied
    whole: Any = value
    placements, mesh = whole.placements, whole.device_mesh
    if len(placements) != 1 or not placements[0].is_shard() or type(placements[0]).__name__ != "Shard":
        return copied
    dim = placements[0].dim
    moved = copied.movedim(dim, 0).contiguous()
    shape = (whole.shape[dim], *moved.shape[1:])
    unit = math.prod(shape[1:])
    each = -(-shape[0] // mesh.size())
    start = min(mesh.get_local_rank() * each, shape[0]) * unit
    return FlatSlice(moved, start, shape, unit, dim) if unit else copied


def from_slices(tree: Any) -> Any:
    """Return a tree in which every part that has a place in a whole is a plain tensor again."""
    if isinstance(tree, FlatSlice):
        rows = tree.local.numel() // max(math.prod(tree.shape[1:]), 1)
        return tree.local.reshape(rows, *tree.shape[1:]).movedim(0, tree.dim)
    if isinstance(tree, dict):
        return {key: from_slices(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(from_slices(value) for value in tree)
    return tree


def as_part_of(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a part as a tensor that is shared out like another; plain where the other is plain."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    whole: Any = like
    return DTensor.from_local(
        part.to(whole.device),
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
