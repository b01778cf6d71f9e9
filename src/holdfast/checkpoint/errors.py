"""What can be wrong with a checkpoint. Pure."""

from __future__ import annotations

from holdfast.errors import HoldfastError


class Torn(HoldfastError):
    """These bytes are not a whole state: cut off, damaged, or something else."""


class Gone(HoldfastError):
    """The shard was there and is no more: dropped, overwritten by a newer one, or lost with its host."""
