"""Tensors of which this worker holds a part: torch's `DTensor`, as `fully_shard` and tensor parallelism make them."""

from __future__ import annotations

import sys
from typing import Any

import torch


def is_sharded(value: Any) -> bool:
    """Whether a value is a tensor of which this worker holds a part."""
    # A program that has one has imported its module, and others need not.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def own_part(value: torch.Tensor) -> torch.Tensor:
    """Return the part that this worker holds, in place; all of a plain tensor."""
    part: torch.Tensor = value._local_tensor if is_sharded(value) else value  # type: ignore[attr-defined]
    return part.detach()


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
