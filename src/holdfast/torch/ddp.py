"""A wrapper around DistributedDataParallel that survives the end of a round."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from holdfast.errors import UsageError

_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters


class ElasticDDP(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A module whose gradients are averaged over all samples of a step while they are computed.

    It is used like the `DistributedDataParallel` inside it, which is made again for every round. That one
    takes the mean over the workers; if their shares of the samples differ, gradients are weighted by them.
    """

    def __init__(self, module: torch.nn.Module, weight: Callable[[], float], options: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._weight = weight
        self._options = options
        self._drop()
        # The first wrapper of a process imports this, which takes a second: better now than while the others wait.
        import torch._dynamo  # noqa: F401

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        outputs = self._ready(*args, **kwargs)
        weight = self._weight()
        if weight == 1.0:
            return outputs
        apply: Any = _Weighted.apply
        return tree_map_only(torch.Tensor, lambda tensor: apply(tensor, weight), outputs)

    def no_sync(self) -> AbstractContextManager[None]:
        """Add gradients up here for now, and average them with the next backward pass outside of this context."""
        return self._ready.no_sync()  # type: ignore[no-any-return, unused-ignore]

    def wrap(self) -> None:
        """Begin a round; called by all workers together, once the process group is formed."""
        options = dict(self._options)
        # All workers take the same state before the first step, so there is no need to send it from here too.
        if "init_sync" in _OPTIONS:
            options.setdefault("init_sync", False)
        object.__setattr__(self, "_wrapped", _SteadyDDP(self.module, **options))

    def unwrap(self) -> None:
        """End a round. Hooks on the parameters are removed at once, so that they are not called in the next round."""
        wrapped = self._wrapped
        if wrapped is not None:
            for name in ("reducer", "logger"):
                wrapped.__dict__.pop(name, None)
        self._drop()

    @property
    def _ready(self) -> Any:
        if self._wrapped is None:
            raise UsageError("there is no round now: call the module inside `with step:`")
        return self._wrapped

    def _drop(self) -> None:
        # Not as an attribute that torch would list among the submodules a second time.
        object.__setattr__(self, "_wrapped", None)

    _wrapped: Any


class _SteadyDDP(DistributedDataParallel):
    """Lays out gradients in the same way from the first step of every round.

    torch learns from a first step in which order gradients come, and changes how they lie in its buckets. Where they
    lie decides in which order gloo adds up what three workers or more have, so the first step of a round would give
    other bits than the same step in the middle of one. Here the order is that of the parameters, the last first.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        # With these torch has an order of its own, or knows none before every step.
        self._steady = not options.get("find_unused_parameters") and not options.get("static_graph")
        super().__init__(*args, **options)
        if self._steady:
            self.reducer._push_all_rebuilt_params()
            self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> Any:
        parameters, sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call, unused-ignore]
        return (parameters[::-1], sparse[::-1]) if self._steady else (parameters, sparse)


class _Weighted(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Passes a tensor on unchanged, and multiplies its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: float) -> torch.Tensor:
        """Return the tensor."""
        ctx.weight = weight
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override, unused-ignore]
        """Weight the gradient; without a sample there may be anything in it."""
        return gradient * ctx.weight if ctx.weight else torch.zeros_like(gradient), None
