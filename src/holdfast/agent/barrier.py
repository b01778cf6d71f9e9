"""A barrier through a store, for a rendezvous that has no better way to know who has finished."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

_COUNT_KEY, _DONE_KEY = "torchelastic/agent/finished", "torchelastic/agent/all_finished"


def barrier(store: Any, world_size: int, timeout_s: float) -> None:
    """Wait until every agent has come this far; raises what the store raises when time is up."""
    if store is None or world_size <= 1:
        return
    if store.add(_COUNT_KEY, 1) == world_size:
        store.set(_DONE_KEY, b"1")
    store.wait([_DONE_KEY], timedelta(seconds=timeout_s))
