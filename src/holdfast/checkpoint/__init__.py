"""State that outlives the worker: its layout in bytes, and the places where it is kept.

    from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier

    checkpoints = Checkpointer([MemoryTier(), StorageTier("/checkpoints/run", every=1000)])
    checkpoints.save(step, {"weights": weights})          # waits for the copy alone
    found = checkpoints.restore()                         # the newest step that is complete over all tiers

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Checkpointer": "checkpointer",
    "Choice": "choose",
    "Every": "policy",
    "FlatSlice": "layout",
    "Gone": "errors",
    "MemoryTier": "memory",
    "NeighbourTier": "neighbour",
    "Notice": "notices",
    "Notices": "notices",
    "Restored": "checkpointer",
    "StorageTier": "storage",
    "Tier": "tier",
    "Torn": "errors",
    "Vault": "vault",
    "deal_evenly": "ranges",
    "pack": "layout",
    "read_dcp": "dcp",
    "standard_tiers": "standard",
    "unpack": "layout",
    "write_dcp": "dcp",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
