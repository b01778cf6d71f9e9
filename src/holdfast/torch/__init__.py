"""What needs torch; nothing here imports it until a name is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.torch.data import CyclingIterator, ElasticDistributedSampler, StepSampler
    from holdfast.torch.ddp import ElasticDDP
    from holdfast.torch.groups import RoundGroups
    from holdfast.torch.run import TorchRun, TorchStep, elastic
    from holdfast.torch.state import TorchState
    from holdfast.torch.store import TorchStore

__all__ = [
    "CyclingIterator",
    "ElasticDDP",
    "ElasticDistributedSampler",
    "RoundGroups",
    "StepSampler",
    "TorchRun",
    "TorchState",
    "TorchStep",
    "TorchStore",
    "elastic",
]

_HOMES = {
    "CyclingIterator": "data",
    "ElasticDDP": "ddp",
    "ElasticDistributedSampler": "data",
    "RoundGroups": "groups",
    "StepSampler": "data",
    "TorchRun": "run",
    "TorchState": "state",
    "TorchStep": "run",
    "TorchStore": "store",
    "elastic": "run",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and only that."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
