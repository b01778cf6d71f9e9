"""The collectives of one round: which workers have begun an operation, what each gets, and how an operation fails.

All members do the same operations in the same order. Each gets its result on its own, a moment after all have come, so
that one may have it when another is gone already. A member that closes its connections, or dies, fails the operation
for those that wait; one that dies silently, or is cut off from the others, leaves them waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.sim.violation import Violation
from holdfast.sim.world import World

if TYPE_CHECKING:
    from holdfast.sim.workers import SimWorker

#: A result reaches a worker within this time after all have come; so does the end of a connection.
SPREAD_S = 0.02


@dataclass(slots=True)
class _Operation:
    kind: str
    brought: dict[int, Any] = field(default_factory=dict)
    #: Ranks that wait for the result.
    waiting: dict[int, None] = field(default_factory=dict)


class SimRound:
    """What connects the workers of one round."""

    def __init__(self, world: World, rng: Random, world_size: int) -> None:
        self._world = world
        self._rng = rng
        self.world_size = world_size
        self.members: dict[int, SimWorker] = {}
        #: Ranks whose connections are closed, and those that are not heard any more.
        self._closed: dict[int, None] = {}
        self._silent: dict[int, None] = {}
        self._operations: list[_Operation] = []
        self._done: dict[int, int] = {}

    def come(self, rank: int, worker: SimWorker, kind: str, data: Any) -> None:
        """Take part in the next operation; `worker.collective_done` or `.collective_failed` tells how it went."""
        self.members[rank] = worker
        index = self._done.get(rank, 0)
        while len(self._operations) <= index:
            self._operations.append(_Operation(kind))
        operation = self._operations[index]
        if operation.kind != kind:
            raise Violation("all workers do the same operations", f"rank {rank} does {kind}, others {operation.kind}")
        operation.brought[rank] = data
        operation.waiting[rank] = None
        self._done[rank] = index + 1
        if self._closed:
            self._fail_soon(operation)
        elif len(operation.brought) == self.world_size and not self._silent:
            for each in operation.brought:
                self._world.after(self._rng.random() * SPREAD_S, self._finish, operation, each)

    def close(self, rank: int, *, silent: bool = False) -> None:
        """End a member's connections; `silent` where the others hear nothing of it."""
        if silent:
            self._silent[rank] = None
            return
        self._closed[rank] = None
        for operation in self._operations:
            operation.waiting.pop(rank, None)
            self._fail_soon(operation)

    def is_closed(self, rank: int) -> bool:
        """Whether another member has closed its connections, as far as this one can see."""
        return not self._silent and any(each != rank for each in self._closed)

    def cut(self, rank: int) -> None:
        """Let nothing through between a member and the others any more: connections that lost bytes stay broken."""
        if self.world_size > 1:
            self._silent[rank] = None

    def _fail_soon(self, operation: _Operation) -> None:
        for rank in list(operation.waiting):
            self._world.after(self._rng.random() * SPREAD_S, self._fail, operation, rank)

    def _finish(self, operation: _Operation, rank: int) -> None:
        if rank in operation.waiting and not self._silent:
            del operation.waiting[rank]
            brought = [operation.brought[each] for each in range(self.world_size)]
            self.members[rank].post(self.members[rank].collective_done, self, operation.kind, brought)

    def _fail(self, operation: _Operation, rank: int) -> None:
        if rank in operation.waiting:
            del operation.waiting[rank]
            self.members[rank].post(self.members[rank].collective_failed, self, "a worker is gone")

    def give_up(self, rank: int) -> None:
        """Stop waiting: what was under way never ends for this worker."""
        for operation in self._operations:
            operation.waiting.pop(rank, None)
