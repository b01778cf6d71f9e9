"""The gangs of one node: the first one, and one more for every replacement, while the other workers keep running.

Together they look like one gang. Only the latest worker of a local rank counts: how the one before ended is known.
"""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.workers.driver import GRACE_S, Gang
from holdfast.workers.plan import WorkerExited, WorkerPlan
from holdfast.workers.strays import read_stat

if TYPE_CHECKING:
    from holdfast.failures import Failure


class Gangs:
    """Starts with a gang; `replace` puts a new worker in the place of one that has ended."""

    def __init__(self, gang: Gang) -> None:
        self._gangs = [gang]
        #: Which gang each local rank's present worker belongs to.
        self._of = dict.fromkeys(gang.plans, gang)
        #: How many workers hold one copy of a model together, as far as any has said.
        self._replica_size = 1
        self._epoll = select.epoll()
        self._epoll.register(gang.fileno(), select.EPOLLIN)

    def start(self) -> None:
        """Start every worker."""
        self._gangs[0].start()

    def replace(self, gang: Gang) -> None:
        """Start a gang whose workers take the place of those of the same local ranks, which have ended.

        Everything that the ended ones still hold is released first, so that a job can do this any number of times.
        """
        assert all(rank not in self._of[rank].running() for rank in gang.plans), "a worker that runs is not replaced"
        for rank in gang.plans:
            self._retire(rank)
        gang.start()
        self._gangs.append(gang)
        self._of.update(dict.fromkeys(gang.plans, gang))
        self._epoll.register(gang.fileno(), select.EPOLLIN)

    def _retire(self, rank: int) -> None:
        gang = self._of[rank]
        gang.retire(rank)
        if not gang.pids():  # nothing is left of it
            self._epoll.unregister(gang.fileno())
            gang.close()
            self._gangs.remove(gang)

    # -- watching --------------------------------------------------------------------------------------------

    @property
    def plans(self) -> dict[int, WorkerPlan]:
        """The plan of each local rank's present worker."""
        return {rank: gang.plans[rank] for rank, gang in self._of.items()}

    def pids(self) -> dict[int, int]:
        """The process id of each local rank's present worker."""
        return {rank: gang.pids()[rank] for rank, gang in self._of.items() if rank in gang.pids()}

    def running(self) -> list[int]:
        """The local ranks whose worker's end has not been seen yet."""
        return [rank for rank, gang in self._of.items() if rank in gang.running()]

    def exits(self) -> dict[int, WorkerExited]:
        """How the present worker of each local rank ended, of those that have."""
        ended = ((rank, gang.exits().get(rank)) for rank, gang in self._of.items())
        return {rank: exited for rank, exited in ended if exited is not None}

    def fileno(self) -> int:
        """What becomes readable when `take_exits` has something to do."""
        return self._epoll.fileno()

    def deadline(self) -> float | None:
        """The monotonic time by which `take_exits` must be called at the latest, or None."""
        deadlines = (gang.deadline() for gang in self._gangs)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def take_exits(self) -> list[WorkerExited]:
        """Return the ends of present workers that have not been taken yet, without waiting; drives a stop."""
        return [exited for gang in self._gangs for exited in gang.take_exits() if self._of[exited.local_rank] is gang]

    # -- one worker ------------------------------------------------------------------------------------------

    def failure(self, exited: WorkerExited, *, timed_out: bool = False) -> Failure:
        """Make the failure record of a worker's end."""
        return self._of[exited.local_rank].failure(exited, timed_out=timed_out)

    def error_file(self, local_rank: int) -> str:
        """Where this worker's error file is, or would be."""
        return self._of[local_rank].error_file(local_rank)

    def stacks_file(self, local_rank: int) -> str:
        """Where this worker writes its stacks when asked to."""
        return self._of[local_rank].stacks_file(local_rank)

    def is_member(self, local_rank: int) -> bool:
        """Whether this worker trains in process, so that workers survive each other."""
        return self._of[local_rank].is_member(local_rank)

    def replica(self, local_rank: int) -> range:
        """Return the local ranks of the workers that end and are replaced together with this one."""
        # Workers that have just been started may fail before they say it; they run the program of those before them.
        size = max(self._replica_size, *(gang.replica_size(rank) for rank, gang in self._of.items()))
        self._replica_size = size
        first = local_rank - local_rank % size
        return range(first, first + size)

    def return_value(self, local_rank: int) -> Any:
        """Return what a worker's function returned."""
        return self._of[local_rank].return_value(local_rank)

    def kill(self, local_rank: int) -> None:
        """Kill one worker at once; its end is reported like any other."""
        self._of[local_rank].kill(local_rank)

    # -- all of them -----------------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether a stop that was asked for is over."""
        return all(gang.stopped is not None for gang in self._gangs)

    def ask_stop(self, number: int = signal.SIGTERM, grace_s: float = GRACE_S) -> None:
        """Begin to stop every worker and return at once."""
        self._each(lambda gang: gang.ask_stop(number, grace_s))

    def stop(self, number: int = signal.SIGTERM, grace_s: float = GRACE_S) -> None:
        """Stop every worker and wait until no process is left."""
        self.ask_stop(number, grace_s)
        while not self.stopped:
            deadline = self.deadline()
            self._epoll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()))
            self._each(Gang.drive)

    def send(self, number: int) -> None:
        """Forward a signal to every living worker's process group."""
        self._each(lambda gang: gang.send(number))

    def close(self) -> None:
        """Kill everything that is left and release everything."""
        self._epoll.close()
        self._each(Gang.close)

    def _each(self, do: Callable[[Gang], object]) -> None:
        for gang in self._gangs:
            do(gang)


def stopped_by_signal(pids: Iterable[int]) -> list[int]:
    """Return which of these processes stand still because SIGSTOP or its like was sent to them."""
    stats = map(read_stat, pids)
    return [stat.pid for stat in stats if stat is not None and stat.state == "T"]
