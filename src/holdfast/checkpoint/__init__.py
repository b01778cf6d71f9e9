"""State that outlives the worker: its layout in bytes, and the tiers that keep it.

    from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier

    checkpoints = Checkpointer([MemoryTier(), StorageTier("/checkpoints/run", every=1000)])
    checkpoints.save(step, {"weights": weights})          # waits for the copy alone
    found = checkpoints.restore()                         # the newest step that is complete over all tiers

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpointer import Checkpointer as Checkpointer
    from holdfast.checkpoint.checkpointer import Restored as Restored
    from holdfast.checkpoint.choose import Choice as Choice
    from holdfast.checkpoint.choose import Every as Every
    from holdfast.checkpoint.dcp import read_dcp as read_dcp
    from holdfast.checkpoint.dcp import write_dcp as write_dcp
    from holdfast.checkpoint.layout import FlatSlice as FlatSlice
    from holdfast.checkpoint.layout import pack as pack
    from holdfast.checkpoint.layout import unpack as unpack
    from holdfast.checkpoint.memory import MemoryTier as MemoryTier
    from holdfast.checkpoint.neighbour import NeighbourTier as NeighbourTier
    from holdfast.checkpoint.notices import Notice as Notice
    from holdfast.checkpoint.notices import Notices as Notices
    from holdfast.checkpoint.ranges import deal_evenly as deal_evenly
    from holdfast.checkpoint.storage import StorageTier as StorageTier
    from holdfast.checkpoint.tier import Tier as Tier
    from holdfast.checkpoint.tier import standard_tiers as standard_tiers
    from holdfast.checkpoint.vault import Vault as Vault
else:
    __getattr__, __dir__, __all__ = attach(
        __name__,
        checkpointer="Checkpointer Restored",
        choose="Choice Every",
        dcp="read_dcp write_dcp",
        layout="FlatSlice pack unpack",
        memory="MemoryTier",
        neighbour="NeighbourTier",
        notices="Notice Notices",
        ranges="deal_evenly",
        storage="StorageTier",
        tier="Tier standard_tiers",
        vault="Vault",
    )
