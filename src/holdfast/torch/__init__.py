"""What needs torch; nothing here imports it until a name is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.torch.store import TorchStore

__all__ = ["TorchStore"]

_HOMES = {"TorchStore": "store"}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and only that."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
