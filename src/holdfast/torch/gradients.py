"""Averages gradients over all workers, weighted by the number of samples of each, in few large pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase

from holdfast.errors import UsageError
from holdfast.torch.sharded import align_gradients, as_part_of, own_part
from holdfast.train.ring import Ring

BUCKET_BYTES = 25 * 1024 * 1024
#: A gradient of so many bytes is summed where it is: to copy it costs more than one collective less saves.
LARGE_BYTES_MIN = 4 * 1024 * 1024

#: Begins to sum one tensor over all workers, in place; returns a function that waits for the end.
Summing = Callable[[torch.Tensor], Callable[[], Any]]


@dataclass(slots=True)
class _Bucket:
    """Parameters of one kind: the gradients of small ones are sent as one tensor, those of large ones each by itself.

    With them goes for each parameter, the large ones last, how many workers have a gradient.
    """

    parameters: list[torch.nn.Parameter]
    flat: torch.Tensor
    views: list[torch.Tensor]
    #: The views as gradients, shared out as the parameters are. To make one takes torch longer than a small sum.
    gradients: list[torch.Tensor]
    present: torch.Tensor
    large: list[torch.nn.Parameter]
    #: Where the large gradients of this step are summed.
    sums: list[torch.Tensor] = field(default_factory=list)

    def everyone(self) -> list[torch.nn.Parameter]:
        """Return all its parameters."""
        return [*self.parameters, *self.large]


class Reducer:
    """Averages the gradients of a module, and the running statistics of its normalisations, over all samples."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = list(module.parameters())
        self._norms = [
            each for each in module.modules() if isinstance(each, _NormBase) and not isinstance(each, SyncBatchNorm)
        ]
        self._trained: list[bool] = []
        self._buckets: list[_Bucket] = []

    def reduce(self, weight: float, summing: Summing) -> None:
        """Replace every gradient by the sum over all workers of gradient times weight."""
        trained = [parameter.requires_grad for parameter in self._parameters]
        if trained != self._trained:
            self._trained, self._buckets = trained, list(_make_buckets(self._parameters))
        waits = []
        for bucket in self._buckets:
            _fill(bucket, weight)
            waits += [summing(each) for each in (bucket.flat, *bucket.sums)]
        statistics = self._statistics()
        if statistics:
            flat = torch.cat([each.reshape(-1) for each in statistics])
            # Without a sample the statistics have not changed, and their weight is 0.
            summing(flat.mul_(weight))()
            _scatter(flat, statistics)
        for wait in reversed(waits):  # sums end in their order: after the last there is nothing to wait for
            wait()
        for bucket in self._buckets:
            _hand_out(bucket)

    def align(self) -> None:
        """Share gradients out as their parameters are; the workers of a replica do so before they sum with others."""
        align_gradients(self._parameters)

    def forget(self) -> None:
        """Release all sums: an aborted collective may still write to their memory."""
        for bucket in self._buckets:
            for parameter in bucket.everyone():
                parameter.grad = None
        self._trained, self._buckets = [], []

    def _statistics(self) -> list[torch.Tensor]:
        return [
            value
            for norm in self._norms
            if norm.training and norm.track_running_stats
            for value in (norm.running_mean, norm.running_var)
            if value is not None
        ]


def sum_with_ring(ring: Ring) -> Summing:
    """Sum through our own ring, in the order of the ranks."""

    def begin(tensor: torch.Tensor) -> Callable[[], Any]:
        total = ring.all_reduce(to_numpy(tensor))
        return lambda: tensor.copy_(torch.from_numpy(total))

    return begin


def to_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array that can be summed; types that numpy lacks become float32."""
    tensor = tensor.detach().cpu()
    return tensor.numpy() if tensor.dtype in _NUMPY else tensor.float().numpy()


_NUMPY = (torch.float32, torch.float64, torch.float16, torch.complex64, torch.complex128)


def take_gradients(parameters: list[torch.nn.Parameter], weight: float) -> dict[str, Any]:
    """Return the weighted gradients as one flat array for each dtype, and clear them."""
    import numpy as np

    found: dict[str, list[Any]] = {}
    for parameter in parameters:
        taken = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        array = to_numpy(taken).reshape(-1)
        found.setdefault(array.dtype.name, []).append(array)
        parameter.grad = None
    return {name: np.concatenate(arrays) * np.array(weight, name) for name, arrays in found.items()}


def give_gradients(parameters: list[torch.nn.Parameter], totals: dict[str, Any]) -> None:
    """Set gradients from the result of `take_gradients`, here or on another worker."""
    places = dict.fromkeys(totals, 0)
    for parameter in parameters:
        name = to_numpy(torch.empty(0, dtype=parameter.dtype)).dtype.name
        place = places[name]
        places[name] += parameter.numel()
        piece = torch.from_numpy(totals[name][place : place + parameter.numel()])
        parameter.grad = piece.to(parameter.device, parameter.dtype).view(parameter.shape)


def _make_buckets(parameters: Iterable[torch.nn.Parameter]) -> Iterable[_Bucket]:
    """Put parameters of one dtype and device together, in their order, up to a size; large ones go with the last."""
    kinds: dict[tuple[torch.dtype, torch.device], tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        small, large = kinds.setdefault((parameter.dtype, parameter.device), ([], []))
        if _nbytes(parameter) >= LARGE_BYTES_MIN:
            large.append(parameter)
            continue
        small.append(parameter)
        if sum(map(_nbytes, small)) >= BUCKET_BYTES:
            yield _make_bucket(small, [])
            kinds[parameter.dtype, parameter.device] = ([], large)
    for small, large in kinds.values():
        if small or large:
            yield _make_bucket(small, large)


def _nbytes(parameter: torch.nn.Parameter) -> int:
    return own_part(parameter).numel() * parameter.element_size()


def _make_bucket(parameters: list[torch.nn.Parameter], large: list[torch.nn.Parameter]) -> _Bucket:
    parts = [own_part(parameter) for parameter in parameters]
    sizes = [part.numel() for part in parts]
    count = len(parameters) + len(large)
    some = own_part([*parameters, *large][0])
    flat = torch.zeros(sum(sizes) + count, dtype=some.dtype, device=some.device)
    *pieces, present = torch.split(flat, [*sizes, count])
    views = [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]
    with torch.no_grad():
        gradients = [as_part_of(view, parameter) for view, parameter in zip(views, parameters, strict=True)]
    return _Bucket(parameters, flat, views, gradients, present, large)


def _fill(bucket: _Bucket, weight: float) -> None:
    with torch.no_grad():
        here = [
            own_part(parameter.grad) if weight and parameter.grad is not None else None
            for parameter in bucket.everyone()
        ]
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in here):
            raise UsageError("sparse gradients cannot be averaged: make the embedding with sparse=False")
        small, large = here[: len(bucket.views)], here[len(bucket.views) :]
        pairs = [(view, grad) for view, grad in zip(bucket.views, small, strict=True) if grad is not None]
        # A gradient may be the view itself, if it was set to zero rather than dropped.
        moved = [(view, grad) for view, grad in pairs if view.data_ptr() != grad.data_ptr()]
        if len(pairs) < len(small):
            for view, gradient in zip(bucket.views, small, strict=True):
                if gradient is None:
                    view.zero_()
        if moved:
            torch._foreach_copy_([view for view, _ in moved], [grad for _, grad in moved])
        bucket.flat.mul_(weight)
        bucket.sums = [
            torch.zeros_like(own_part(parameter), memory_format=torch.contiguous_format)
            if gradient is None
            else gradient.contiguous()
            for parameter, gradient in zip(bucket.large, large, strict=True)
        ]
        if bucket.sums:
            torch._foreach_mul_(bucket.sums, weight)
        bucket.present.fill_(1.0)
        if any(gradient is None for gradient in here):
            for index, gradient in enumerate(here):
                bucket.present[index] = 0.0 if gradient is None else 1.0


def _hand_out(bucket: _Bucket) -> None:
    """Give every parameter its sum; one that had no gradient on any worker gets none."""
    everyone = bucket.everyone()
    missing = [index for index, parameter in enumerate(everyone) if parameter.grad is None]
    absent = {index for index in missing if not bucket.present[index]} if missing else set()
    for index, (parameter, gradient) in enumerate(zip(bucket.parameters, bucket.gradients, strict=True)):
        parameter.grad = None if index in absent else gradient
    first = len(bucket.parameters)
    for index, (parameter, total) in enumerate(zip(bucket.large, bucket.sums, strict=True), first):
        if index in absent:
            parameter.grad = None
        elif parameter.grad is None or own_part(parameter.grad).data_ptr() != total.data_ptr():
            parameter.grad = as_part_of(total, parameter)
    bucket.sums = []


def _scatter(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for piece, tensor in zip(torch.split(flat, [tensor.numel() for tensor in tensors]), tensors, strict=True):
            tensor.copy_(piece.view(tensor.shape))
