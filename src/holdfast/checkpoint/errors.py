"""What can be wrong with a shard of a checkpoint. Pure."""

from __future__ import annotations

from holdfast.errors import HoldfastError


class CorruptShardError(HoldfastError):
    """The bytes are not a whole state: they are cut off, damaged, or something else."""


class ShardMissingError(HoldfastError):
    """The shard was listed and is gone: deleted, overwritten by a newer one, or lost with its host."""
