"""The interface of a checkpoint tier (memory, a neighbour's memory, storage, or your own), and the usual tiers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.checkpoint.checksums import Checksums
from holdfast.checkpoint.keys import Entry, Key

#: How many complete checkpoints storage keeps.
KEEP = 3


class Shard(Protocol):
    """One shard, open for reading."""

    @property
    def nbytes(self) -> int:
        """The size of the state in bytes."""

    def read(self, start: int, stop: int) -> memoryview:
        """Return a range of its bytes; raises `CorruptShardError`, `ShardMissingError` or `OSError`."""

    def close(self) -> None:
        """Close it; what was read stays valid."""


class Tier(Protocol):
    """Keeps shards. A shard is listed only if it is whole; a save that fails raises and leaves nothing half done."""

    #: Its name in facts, metrics and sentences.
    name: str
    #: Only steps that this number divides are saved here.
    every: int

    def save(self, key: Key, state: memoryview, sums: Checksums) -> None:
        """Save a shard; called by the background thread."""

    def entries(self) -> list[Entry]:
        """List every whole shard."""

    def open(self, entry: Entry) -> Shard:
        """Open a shard that was listed; raises `CorruptShardError` or `ShardMissingError`."""

    def drop(self, key: Key) -> None:
        """Delete a shard, if it is there."""

    def close(self) -> None:
        """Close connections and memory; saved shards stay."""


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
    """Return memory and neighbours where the agent provides them, and storage where a path or URL is given.

    `memory=True` or `False` asks for memory or none whatever the agent provides; `copies=0` asks for no neighbours.
    Storage takes only steps that `storage_every` divides; `options` are those of fsspec.
    """
    from holdfast.checkpoint import neighbour  # a worker imports only the tiers that it uses
    from holdfast.checkpoint.memory import FOLDER_VARIABLE, VAULT_VARIABLE, MemoryTier
    from holdfast.checkpoint.storage import StorageTier

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
