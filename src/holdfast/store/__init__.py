"""Shared keys of a run: the store's interface, a store in memory, one over the wire, and prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.store.api import Store as Store
    from holdfast.store.client import StoreClient as StoreClient
    from holdfast.store.environ import from_environ as from_environ
    from holdfast.store.keys import StoreLimits as StoreLimits
    from holdfast.store.machine import StoreMachine as StoreMachine
    from holdfast.store.memory import MemoryStore as MemoryStore
    from holdfast.store.prefix import PrefixStore as PrefixStore
else:
    __getattr__, __dir__, __all__ = attach(
        __name__,
        api="Store",
        client="StoreClient",
        environ="from_environ",
        keys="StoreLimits",
        machine="StoreMachine",
        memory="MemoryStore",
        prefix="PrefixStore",
    )
