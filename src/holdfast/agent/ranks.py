"""Numbering workers: from a place, or by an exchange through a store for a rendezvous that gives only node ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.agent.api import Worker

_INFO_KEY = "torchelastic/role_info/"
_RANKS_KEY = "torchelastic/assigned_ranks/"


def assign_ranks(
    local_world_size: int, first_rank: int, world_size: int, first_role_rank: int, role_world_size: int
) -> list[Worker]:
    """Number one node's workers in a row."""
    return [
        Worker(local_rank, first_rank + local_rank, first_role_rank + local_rank, world_size, role_world_size)
        for local_rank in range(local_world_size)
    ]


@dataclass(frozen=True)
class RoleInstanceInfo:
    """One agent's role, rank and number of workers, as the agents tell each other."""

    role: str
    rank: int
    local_world_size: int

    def serialize(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def deserialize(data: bytes) -> RoleInstanceInfo:
        """Read what `serialize` wrote."""
        return RoleInstanceInfo(**json.loads(data))

    def exchange(self, store: Any, group_world_size: int) -> list[Worker]:
        """Tell rank 0 what this node brings; rank 0 numbers everybody; read our own numbers."""
        store.set(f"{_INFO_KEY}{self.rank}", self.serialize())
        if self.rank == 0:
            infos = [self.deserialize(store.get(f"{_INFO_KEY}{rank}")) for rank in range(group_world_size)]
            for rank, numbers in enumerate(first_numbers(infos)):
                store.set(f"{_RANKS_KEY}{rank}", json.dumps(numbers).encode())
        first_rank, world_size, first_role_rank, role_world_size = json.loads(store.get(f"{_RANKS_KEY}{self.rank}"))
        return assign_ranks(self.local_world_size, first_rank, world_size, first_role_rank, role_world_size)


def first_numbers(infos: Sequence[RoleInstanceInfo]) -> list[tuple[int, int, int, int]]:
    """Give each node its first rank, the world size, its first role rank and its role's world size."""
    world_size = sum(info.local_world_size for info in infos)
    role_sizes: dict[str, int] = {}
    for info in infos:
        role_sizes[info.role] = role_sizes.get(info.role, 0) + info.local_world_size
    numbers: list[tuple[int, int, int, int]] = []
    first_rank, first_role_ranks = 0, dict.fromkeys(role_sizes, 0)
    for info in infos:
        numbers.append((first_rank, world_size, first_role_ranks[info.role], role_sizes[info.role]))
        first_rank += info.local_world_size
        first_role_ranks[info.role] += info.local_world_size
    return numbers
