"""Rounds from any handler with TorchElastic's methods: asking blocks while a round forms, and the handler is polled.

Nodes that have only their ranks number their workers by an exchange through the handler's store, and meet there again
at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.agent.api import Worker, WorkerSpec, workers_at
from holdfast.agent.round_source import Blocking, RoundSource
from holdfast.coordinator.messages import Cause, Place, RoundId
from holdfast.coordinator.ranks import Numbers, number_workers
from holdfast.errors import HoldfastError, RendezvousError
from holdfast.facts import facts
from holdfast.quantities import count
from holdfast.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo, as_rendezvous_info
from holdfast.rendezvous.events import AskFailed, MemberEffect, RoundBroken, RoundSealed, RunEnded
from holdfast.store.agree import barrier

#: Where agents meet at the end through a store, TorchElastic's agents among them.
EXIT_BARRIER_KEY = "torchelastic/agent/terminal_state"
_INFO_KEY = "torchelastic/role_info/"
_RANKS_KEY = "torchelastic/assigned_ranks/"


class ClassicRounds(RoundSource):
    """Makes any `RendezvousHandler` a source of rounds; asking blocks, and it polls for newcomers."""

    counts_restarts = False

    def __init__(self, handler: RendezvousHandler, spec: WorkerSpec, exit_barrier_timeout_s: float) -> None:
        self._handler = handler
        self._spec = spec
        self._exit_barrier_timeout_s = exit_barrier_timeout_s
        self._listener: Callable[[MemberEffect], None] = lambda _: None
        self._blocking: Blocking = nullcontext
        #: The place in the round that runs, while it is looked at for newcomers.
        self._place: Place | None = None
        self._store: Any = None
        #: Waits for the others at the end; an agent of your own may wait otherwise.
        self.exit_barrier: Callable[[], None] = self.wait_others

    def listen(self, listener: Callable[[MemberEffect], None], blocking: Blocking | None = None) -> None:
        """Send news to `listener`, in the thread that asked."""
        self._listener = listener
        if blocking is not None:
            self._blocking = blocking

    def ask(self, cause: Cause | None = None, number: int = 0) -> None:
        """Block in the handler until it has a round, and number the workers by it."""
        del cause
        with self._blocking():
            info = as_rendezvous_info(self._handler.next_rendezvous())
            place = self._seat(info)
        self._store, self._place = info.store, place
        self._listener(RoundSealed(place, number))

    @property
    def poll_s(self) -> float | None:
        """How often to look for newcomers: while a round runs."""
        return self._spec.monitor_interval if self._place is not None else None

    def poll(self) -> None:
        """Ask the handler whether nodes want to join; a round that they wait for is over."""
        place = self._place
        if place is not None and (waiting := self._handler.num_nodes_waiting()):
            self._place = None
            self._listener(RoundBroken(place, f"{count(waiting, 'node')} want to join"))

    def fail(self, cause: Cause) -> None:
        """Do nothing: the other nodes notice by themselves."""
        del cause
        self._place = None

    def finish(self) -> None:
        """Wait for the others at the exit barrier; a timeout is only reported."""
        self._place = None
        try:
            with self._blocking():
                self.exit_barrier()
        except Exception as error:  # noqa: BLE001 - a store of others may raise anything, and our work is done
            facts.warn("exit_barrier", f"the others did not finish with us: {error}")
        self._listener(RunEnded("finished", failed=False))

    def wait_others(self, nodes: int | None = None, store: Any = None) -> None:
        """Wait through the store until this many agents are done."""
        store, nodes = store or self._store, self._nodes if nodes is None else nodes
        if store is not None and nodes > 1:
            barrier(store, nodes, EXIT_BARRIER_KEY, self._exit_barrier_timeout_s)

    def leave(self, reason: str) -> bool:
        """Do nothing: a handler of another package has no way to leave."""
        del reason
        self._place = None
        return True

    def release(self, *, signalled: bool) -> None:
        """Shut the handler down, which ends the run for all nodes; not if a signal ended this one alone."""
        if not signalled:
            self._handler.shutdown()

    def error_of(self, unanswered: AskFailed | RunEnded) -> HoldfastError:
        """Make an error of the reason; the handler raises its own errors itself."""
        return RendezvousError(unanswered.reason)

    def store(self) -> Any:
        """Return the store of the round."""
        return self._store

    def _seat(self, info: RendezvousInfo) -> Place:
        """Find this node's place: ranks by an exchange, and where rank 0 listens as the spec or the handler says."""
        spec, self._nodes = self._spec, info.world_size
        if spec.master_addr and spec.master_port:
            master = RendezvousStoreInfo(spec.master_addr, spec.master_port)
        else:
            master = info.bootstrap_store_info or RendezvousStoreInfo.build(
                info.rank, info.store, spec.master_addr or spec.local_addr, spec.master_port
            )
        mine = RoleInstanceInfo(spec.role, info.rank, spec.local_world_size)
        numbers = mine.agree(info.store, info.world_size)
        return Place(RoundId(0, ""), info.rank, info.world_size, *numbers, master.master_addr, master.master_port)


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

    @staticmethod
    def compare(obj1: RoleInstanceInfo, obj2: RoleInstanceInfo) -> int:
        """Order by role, then by rank: negative, 0 or positive, as `functools.cmp_to_key` takes it."""
        if obj1.role == obj2.role:
            return obj1.rank - obj2.rank
        return 1 if obj1.role > obj2.role else -1

    @staticmethod
    def find_role_boundaries(roles_infos: list[RoleInstanceInfo], role: str) -> tuple[int, int]:
        """Return the first and the last place of a role in a sorted list, or -1 for both."""
        places = [place for place, info in enumerate(roles_infos) if info.role == role]
        return (places[0], places[-1]) if places else (-1, -1)

    def agree(self, store: Any, group_world_size: int) -> Numbers:
        """Tell rank 0 about this node's workers; rank 0 numbers all workers; read our own numbers."""
        store.set(f"{_INFO_KEY}{self.rank}", self.serialize())
        if self.rank == 0:
            infos = [self.deserialize(store.get(f"{_INFO_KEY}{rank}")) for rank in range(group_world_size)]
            for rank, numbers in enumerate(number_workers([(each.role, each.local_world_size) for each in infos])):
                store.set(f"{_RANKS_KEY}{rank}", json.dumps(numbers).encode())
        return Numbers(*json.loads(store.get(f"{_RANKS_KEY}{self.rank}")))

    def exchange(self, store: Any, group_world_size: int) -> list[Worker]:
        """Number this node's workers by an exchange with all others."""
        numbers = self.agree(store, group_world_size)
        return workers_at(Place(RoundId(0, ""), self.rank, group_world_size, *numbers, "", 0), self.local_world_size)
