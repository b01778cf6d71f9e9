"""Tensors in the layout of state: their bytes, without a copy if they are in this host's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.checkpoint.layout import CorruptShardError, Leaf
from holdfast.errors import UsageError
from holdfast.torch.sharded import as_slice, own_part


def view_tensor(value: torch.Tensor) -> tuple[str, tuple[int, ...], memoryview]:
    """Return a tensor's dtype, shape and bytes; those of a device come through pinned memory."""
    name = str(value.dtype).removeprefix("torch.")
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        raise UsageError(f"a {name} tensor of layout {kind} has no plain bytes: turn it into a dense tensor")
    tensor = value.detach()
    # A conjugate or a negative may be lazy: its bytes do not exist yet.
    tensor = to_host(tensor.resolve_conj().resolve_neg()).contiguous()
    if not tensor.numel():
        return name, tuple(value.shape), memoryview(b"")
    raw = tensor.reshape(-1).view(torch.uint8).numpy()
    return name, tuple(value.shape), memoryview(raw.data)


def make_tensor(dtype: str, shape: tuple[int, ...], data: memoryview) -> torch.Tensor:
    """Return a tensor over the bytes, in this host's memory; bytes that must not be written to are copied first."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise CorruptShardError(
            f"the state holds a tensor of type '{dtype}', which torch {torch.__version__} does not know"
        )
    if not len(data):
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8).view(kind).reshape(shape)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy of one that is on a device; the copy is complete when this returns."""
    if tensor.device.type == "cpu":
        return tensor
    host = host_like(tensor)
    host.copy_(tensor)
    return host


def host_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory for a tensor on this host; pinned if the tensor is on a GPU, for the bus's full speed."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda, memory_format=torch.contiguous_format)


def copy_tensors(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies in this host's memory; tensors of one device are copied together."""
    copies: list[torch.Tensor] = []
    waiting = False
    for tensor in tensors:
        if tensor.device.type == "cpu":
            copies.append(tensor.detach().clone(memory_format=torch.contiguous_format))
        else:
            host = host_like(tensor)
            host.copy_(tensor.detach(), non_blocking=True)
            waiting = waiting or tensor.is_cuda
            copies.append(host)
    if waiting:
        torch.cuda.synchronize()
    return copies


def copy_tree(value: Any, *, slices: bool = False) -> Any:
    """Return a tree of dicts, lists, tuples and anything else in which every tensor is a copy in this host's memory.

    Of a sharded tensor it has this worker's part, with `slices` as a `FlatSlice` that says where it belongs.
    """
    tensors: list[torch.Tensor] = []
    _collect(value, tensors)
    return _rebuild(value, iter(copy_tensors(tensors)), slices)


#: Copies a tree.
Copied = Callable[[Any], Any]


def copy_slices(value: Any) -> Any:
    """Return what `copy_tree` does, with parts of sharded tensors as slices that say where they belong."""
    return copy_tree(value, slices=True)


def keep_on_device(value: Any) -> Any:
    """Return a tree in which tensors of a device are this worker's parts of them, in place, and others are copies."""
    tensors: list[torch.Tensor] = []
    _collect(value, tensors)
    on_host = iter(copy_tensors([tensor for tensor in tensors if tensor.device.type == "cpu"]))
    return _rebuild(value, (next(on_host) if each.device.type == "cpu" else each for each in tensors), slices=False)


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(own_part(value))
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, found)


def _rebuild(value: Any, copies: Any, slices: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return as_slice(value, next(copies)) if slices else next(copies)
    if isinstance(value, dict):
        return {key: _rebuild(item, copies, slices) for key, item in value.items()}
    if isinstance(value, list):
        return [_rebuild(item, copies, slices) for item in value]
    if isinstance(value, tuple):
        return tuple(_rebuild(item, copies, slices) for item in value)
    return value


#: How tensors are written and read; `holdfast.checkpoint.layout` asks for it by name.
TORCH_LEAF = Leaf("torch", view_tensor, make_tensor)
