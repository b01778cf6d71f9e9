"""Numbering workers: from a place, or by an exchange through a store for a rendezvous that gives only node ranks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.agent.api import Worker
from holdfast.coordinator.ranks import Numbers, number_workers

_INFO_KEY = "torchelastic/role_info/"
_RANKS_KEY = "torchelastic/assigned_ranks/"


def assign_ranks(local_world_size: int, numbers: Numbers) -> list[Worker]:
    """Number one node's workers in a row."""
    first, world_size, first_in_role, role_world_size = numbers
    return [
        Worker(local_rank, first + local_rank, first_in_role + local_rank, world_size, role_world_size)
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
            for rank, numbers in enumerate(number_workers([(each.role, each.local_world_size) for each in infos])):
                store.set(f"{_RANKS_KEY}{rank}", json.dumps(numbers).encode())
        return assign_ranks(self.local_world_size, Numbers(*json.loads(store.get(f"{_RANKS_KEY}{self.rank}"))))
