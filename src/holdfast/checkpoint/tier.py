"""What a tier of checkpoints answers to: memory, a neighbour's memory, storage, or somebody else's."""

from __future__ import annotations

from typing import Protocol

from holdfast.checkpoint.keys import Entry, Key
from holdfast.checkpoint.sums import Sums


class Shard(Protocol):
    """One shard, open for reading."""

    @property
    def nbytes(self) -> int:
        """How long the state is."""

    def read(self, start: int, stop: int) -> memoryview:
        """Return a range of its bytes as written; raises `CorruptShardError`, `ShardMissingError` or `OSError`."""

    def close(self) -> None:
        """Let go of it; what was read stays."""


class Tier(Protocol):
    """A place for shards. A shard is there whole, or it is not listed; saving raises and leaves nothing half done."""

    #: What facts, metrics and sentences call it.
    name: str
    #: Only steps that this number divides are saved here.
    every: int

    def save(self, key: Key, state: memoryview, sums: Sums) -> None:
        """Keep a shard; called by the background thread."""

    def entries(self) -> list[Entry]:
        """Name every whole shard that is here."""

    def open(self, entry: Entry) -> Shard:
        """Open a shard that was listed; raises `CorruptShardError` or `ShardMissingError` where it cannot be read."""

    def drop(self, key: Key) -> None:
        """Forget a shard; does nothing where it is not there."""

    def close(self) -> None:
        """Let go of connections and memory; what is kept stays."""
