"""Tensors on an accelerator: copied directly into the snapshot's memory, which is pinned. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.checkpoint.layout import Leaf

#: Where pinned memory begins, and how long it is; pinning takes far longer than the copy, so it is done once.
_pinned: dict[int, int] = {}


def measure(leaf: Leaf, tensor: Any) -> tuple[str, tuple[int, ...], int]:
    """Return the dtype's name, the shape and the number of bytes of a tensor, without moving it."""
    import torch

    dtype, _, _ = leaf.view(torch.empty(0, dtype=tensor.dtype))
    return dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size()


def begin_copies(tensors: Sequence[tuple[int, int, Any]], target: memoryview) -> Callable[[], None]:
    """Start to copy tensors to their places in `target`; the returned function waits until all are there."""
    import torch

    pinned = pin(target)
    whole = torch.frombuffer(target, dtype=torch.uint8)
    devices: dict[Any, None] = {}
    kept: list[Any] = []
    with torch.no_grad():
        for at, nbytes, tensor in tensors:
            if nbytes == 0:
                continue
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            whole[at : at + nbytes].copy_(flat, non_blocking=pinned)
            kept.append(flat)  # a copy made to be contiguous must live until it is on this side
            devices[tensor.device] = None

    def finish() -> None:
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        kept.clear()

    return finish


def pin(memory: memoryview) -> bool:
    """Pin memory, so that copies into it run at the speed of the bus; return whether it is pinned."""
    import torch

    if not torch.cuda.is_available():
        return False
    start, nbytes = torch.frombuffer(memory, dtype=torch.uint8).data_ptr(), len(memory)
    if _pinned.get(start, 0) >= nbytes:
        return True
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with contextlib.suppress(RuntimeError):
        if start in _pinned:
            runtime.cudaHostUnregister(start)
            del _pinned[start]
        if int(runtime.cudaHostRegister(start, nbytes, 0)) == 0:
            _pinned[start] = nbytes
            return True
    return False


def unpin(memory: memoryview) -> None:
    """Unpin memory that is about to be released."""
    if not _pinned:
        return
    import torch

    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    for at in [at for at in _pinned if start <= at < start + len(memory)]:
        del _pinned[at]
        with contextlib.suppress(RuntimeError):
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(at)
