"""A state that goes to newcomers from GPU to GPU, over the round's own process group.

Every worker that holds the state sends an equal part of it to each that needs it, all at the same time. What is not on
a GPU goes over the ring, with a description of the rest: where each tensor is in the tree, and a sum of its bits that
must come out the same. A tensor that the newcomer has already is filled in place, so that no second copy of a model
has to fit into its memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from holdfast.checkpoint.layout import pack, unpack
from holdfast.errors import UsageError
from holdfast.torch.sharded import own_part

if TYPE_CHECKING:
    from holdfast.torch.state import TorchState

#: Tensors of fewer bytes go in one piece.
SPLIT_BYTES_MIN = 1 << 20
#: What stands in the tree for a tensor that travels by itself; a program's own text does not begin so.
MARK = "\0tensor "

Piece = tuple[torch.Tensor, int]


class Exchange(Protocol):
    """Sends and receives tensors, each with the rank of its peer, all at the same time."""

    def __call__(self, sends: Sequence[Piece], receives: Sequence[Piece]) -> None:
        """Return when all have arrived."""


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor travels by itself: one on a GPU does."""
    return tensor.is_cuda


def take_out(tree: Any, travels: Callable[[torch.Tensor], bool] = on_device) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a tree with a mark in place of every tensor that travels by itself, and these tensors by their marks."""
    found: dict[str, torch.Tensor] = {}

    def walk(value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            part = own_part(value)
            if part.numel() and part.layout is torch.strided and not part.is_conj() and travels(part):
                found[where] = part
                return where
            return value
        if isinstance(value, dict):
            return {key: walk(item, f"{where}/{key}") for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(walk(item, f"{where}/{index}") for index, item in enumerate(value))
        return value

    return walk(tree, MARK), found


def put_back(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the tree with tensors in place of their marks."""
    if isinstance(tree, str):
        return tensors.get(tree, tree)
    if isinstance(tree, dict):
        return {key: put_back(item, tensors) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(put_back(item, tensors) for item in tree)
    return tree


class Handover:
    """How one worker takes part in a transfer: `own` is its state, with tensors as they are; `exchange` moves them."""

    def __init__(
        self, rank: int, own: Any, exchange: Exchange, travels: Callable[[torch.Tensor], bool] = on_device
    ) -> None:
        self._rank = rank
        self._exchange = exchange
        self._kept, self._tensors = take_out(own, travels)

    def describe(self) -> bytes:
        """Return what the workers have to know of this one's state before its tensors travel."""
        totals = _sums(list(self._tensors.values()))
        listed = [
            [mark, str(each.dtype).removeprefix("torch."), list(each.shape), each.device.type, total]
            for (mark, each), total in zip(self._tensors.items(), totals, strict=True)
        ]
        return pack({"kept": self._kept, "tensors": listed}, checksums=False).to_bytes()

    def carry(self, described: bytes | memoryview, to: Sequence[int], world_size: int) -> tuple[Any, int]:
        """Send or receive the tensors.

        Returns the described state where this worker is one of `to`, else None, and the bytes of all tensors.
        """
        source = unpack(described, verify=False)
        nbytes = sum(
            math.prod(shape) * torch.empty(0, dtype=getattr(torch, dtype)).element_size()
            for _, dtype, shape, *_ in source["tensors"]
        )
        return self._exchange_tensors(source, to, world_size), nbytes

    def _exchange_tensors(self, source: Any, to: Sequence[int], world_size: int) -> Any:
        givers = [rank for rank in range(world_size) if rank not in to]
        if self._rank in to:
            return self._take(source, givers)
        share = givers.index(self._rank)
        sends: list[Piece] = []
        for number, (mark, dtype, shape, _, _) in enumerate(source["tensors"]):
            tensor = self._tensors.get(mark)
            if tensor is None or not _fits(tensor, dtype, shape):
                raise UsageError(f"this worker's state has no {mark.removeprefix(MARK)} like that of the others")
            pieces = _pieces(tensor.contiguous(), number, len(givers))
            sends += [(pieces[share], peer) for peer in to if share in pieces]
        self._exchange(sends, [])
        return None

    def _take(self, source: Any, givers: Sequence[int]) -> Any:
        taken: dict[str, torch.Tensor] = {}
        receives: list[Piece] = []
        for number, (mark, dtype, shape, kind, _) in enumerate(source["tensors"]):
            tensor = self._tensors.get(mark)
            if tensor is None or not _fits(tensor, dtype, shape) or not tensor.is_contiguous():
                tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=kind)
            taken[mark] = tensor
            receives += [(piece, givers[share]) for share, piece in _pieces(tensor, number, len(givers)).items()]
        self._exchange([], receives)
        for (mark, *_, total), arrived in zip(source["tensors"], _sums(list(taken.values())), strict=True):
            if arrived != total:
                raise UsageError(
                    f"{mark.removeprefix(MARK)} did not arrive as rank {givers[0]} has it: a worker's state is not "
                    "that of the others, or it was damaged on the way"
                )
        return put_back(source["kept"], taken)


class DeviceCarrier:
    """Moves a worker's state from device to device in one round."""

    def __init__(self, state: TorchState, exchange: Exchange, rank: int, world_size: int) -> None:
        self._state = state
        self._exchange = exchange
        self._rank = rank
        self._world_size = world_size

    def describe(self, position: Any) -> bytes:
        """Return what all workers have to know of this worker's state before it travels, with its position."""
        return self._handover(position).describe()

    def carry(self, described: bytes | memoryview, to: Sequence[int]) -> tuple[Any, int]:
        """Send or receive a state; returns it where this worker needs it, with its position, and its size in bytes."""
        return self._handover(None).carry(described, to, self._world_size)

    def _handover(self, position: Any) -> Handover:
        own = {"state": self._state.capture_on_device(), "position": position}
        return Handover(self._rank, own, self._exchange)


def _pieces(tensor: torch.Tensor, number: int, shares: int) -> dict[int, torch.Tensor]:
    """Return which part of a tensor each of so many givers sends; small tensors go round whole."""
    flat = tensor.reshape(-1).view(torch.uint8)
    if flat.numel() < SPLIT_BYTES_MIN:
        return {number % shares: flat}
    cuts = [flat.numel() * share // shares for share in range(shares + 1)]
    return {share: flat[cuts[share] : cuts[share + 1]] for share in range(shares)}


def _fits(tensor: torch.Tensor, dtype: str, shape: Sequence[int]) -> bool:
    return str(tensor.dtype) == f"torch.{dtype}" and list(tensor.shape) == list(shape)


def _sums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the sum of each tensor's bits, taken as whole numbers; they are made where the tensors are."""
    return [int(total) for total in torch.stack([_sum_of(each) for each in tensors]).tolist()] if tensors else []


def _sum_of(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() // 4 * 4 if flat.storage_offset() % 4 == 0 else 0
    total = flat[whole:].sum(dtype=torch.int64)
    return total + flat[:whole].view(torch.int32).sum(dtype=torch.int64) if whole else total
