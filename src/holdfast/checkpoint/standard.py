"""The usual tiers of a worker, from what its agent has arranged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.memory import FOLDER_VARIABLE, VAULT_VARIABLE, MemoryTier
from holdfast.checkpoint.storage import KEEP, StorageTier
from holdfast.checkpoint.tier import Tier


def standard_tiers(
    storage: str | os.PathLike[str] | None = None,
    *,
    keep: int | None = KEEP,
    storage_every: int = 1,
    memory: bool | None = None,
    copies: int = 1,
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Tier]:
    """Return memory and neighbours where this worker's agent has them, and storage where a path or URL is given.

    `memory` asks for memory in any case, or for none. With `copies=0` no neighbour is asked. `storage_every` saves only
    steps that it divides; `options` are those of fsspec.
    """
    from holdfast.checkpoint import neighbour

    environ = os.environ if environ is None else environ
    tiers: list[Tier] = []
    if memory or (memory is None and environ.get(FOLDER_VARIABLE)):
        tiers.append(MemoryTier(environ.get(FOLDER_VARIABLE), place=environ.get(VAULT_VARIABLE, "")))
        if copies > 0 and int(environ.get("GROUP_WORLD_SIZE", "1")) > 1:
            others = neighbour.from_environ(environ, copies=copies)
            tiers += [others] if others is not None else []
    if storage is not None:
        tiers.append(StorageTier(storage, keep=keep, every=storage_every, **options))
    return tiers
