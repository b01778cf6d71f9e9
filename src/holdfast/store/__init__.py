"""Shared keys of a run: the store's interface, a store in memory, one over the wire, and prefixes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.store.api import Store
    from holdfast.store.client import StoreClient
    from holdfast.store.environ import from_environ
    from holdfast.store.keys import StoreLimits
    from holdfast.store.machine import StoreMachine
    from holdfast.store.memory import MemoryStore
    from holdfast.store.prefix import PrefixStore

__all__ = ["MemoryStore", "PrefixStore", "Store", "StoreClient", "StoreLimits", "StoreMachine", "from_environ"]

_HOMES = {
    "MemoryStore": "memory",
    "PrefixStore": "prefix",
    "Store": "api",
    "StoreClient": "client",
    "StoreLimits": "keys",
    "StoreMachine": "machine",
    "from_environ": "environ",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and only that."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
