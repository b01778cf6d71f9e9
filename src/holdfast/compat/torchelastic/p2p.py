"""The peer-to-peer coordinator of the first torchelastic: workers meet by a URL, with or without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from holdfast.compat.torchelastic.coordinator import Coordinator, WorkerStats
from holdfast.errors import RoundOverError, UsageError
from holdfast.facts import facts
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.train.membership import Membership, worker_settings
from holdfast.train.state import State
from holdfast.train.trainer import Trainer

if TYPE_CHECKING:
    from holdfast.torch.groups import RoundGroups

#: Which backend serves which scheme of an `init_method`.
SCHEMES = {"holdfast": "holdfast", "etcd": "etcd"}
#: Our own collectives: no torch is needed, and none is imported.
RING = "ring"
#: A worker this much slower than the fastest is named.
STRAGGLER_RATIO = 0.8

__all__ = ["CoordinatorP2P", "parse_init_method"]


class CoordinatorP2P(Coordinator):
    """Coordinates the workers of one run among themselves.

    `init_method` is `holdfast://HOST:PORT/RUN?min_workers=1&max_workers=4`, where the worker on that host that comes
    first runs the coordinator, or `etcd://HOST:PORT/RUN?...`, where etcd elects one. `c10d_backend` names the
    backend of torch's process group, which is new in every round, or `ring` for our own collectives.
    """

    #: Every so many steps the workers compare their progress rates.
    MONITOR_PROGRESS_FREQ = 1000

    def __init__(
        self,
        c10d_backend: str,
        init_method: str,
        max_num_trainers: int,
        process_group_timeout: int = 10_000,
        coordinator_pg_timeout: int = 600_000,
    ) -> None:
        self._backend = c10d_backend
        self._group_timeout_s = process_group_timeout / 1000
        params = parse_init_method(init_method, max_num_trainers, coordinator_pg_timeout / 1000)
        # A worker that is told of a broken round and does not come back within the same time is stuck.
        params.config.setdefault("rejoin_timeout", self._group_timeout_s)
        # The loop takes its own snapshots, and asks after every step whether to regroup.
        self._trainer = Trainer(
            Membership(params), operation_timeout_s=self._group_timeout_s, undoes=False, vote_every_s=0.0
        )
        self._done = False
        self._groups: RoundGroups | None = None
        #: Whether this worker was much slower than the fastest when they last compared.
        self.is_worker_straggler = False

    @property
    def trainer(self) -> Trainer:
        """This worker's part in the present round: its rank, the world size, and our ring."""
        return self._trainer

    # -- rounds ----------------------------------------------------------------------------------------------------

    def rendezvous_barrier(self) -> tuple[Any, int, int]:
        """Block until a round is agreed."""
        self._leave_group()
        view = self._trainer.form_round()
        return view.store, view.rank, view.world_size

    def init_process_group(self) -> None:
        """Form torch's process group of this round; our ring stands already."""
        if self._backend == RING:
            return
        if self._groups is None:
            from holdfast.torch.groups import RoundGroups

            self._groups = RoundGroups(self._backend, self._group_timeout_s)
        self._groups.form(self._trainer.view, self._trainer.membership)

    def sync(self, state: State, world_size: int, rank: int) -> None:
        """Make the state equal on all workers."""
        del world_size, rank
        self._trainer.sync(state)

    def barrier(self) -> None:
        """Wait until all workers of the round have called this."""
        self._trainer.ring.barrier()

    def explains(self, error: Exception) -> bool:
        """Return whether an error that is no `RuntimeError` only comes from a round that is over."""
        return isinstance(error, ValueError | OSError) and self._trainer.membership.broken is not None

    def _leave_group(self) -> None:
        if self._groups is not None:
            self._groups.close()

    # -- steps -------------------------------------------------------------------------------------------------------

    def should_save_checkpoint(self) -> bool:
        """The state decides."""
        return False

    def should_rendezvous(self, state: State) -> bool:
        """Return whether newcomers wait or the round is over; all workers hear the same, since they tell each other."""
        del state
        return self._trainer.machine.needs_round

    def should_stop_training(self) -> bool:
        """Return whether a worker has ended the training."""
        return self._done or self._trainer.membership.ended is not None

    def signal_training_done(self) -> None:
        """End the training for all workers."""
        self._done = True
        self._leave_group()
        self._trainer.leave("its training is done", failed=False)

    def monitor_progress(self, state: State, worker_stats: WorkerStats | None) -> None:
        """Compare, every so many steps, the workers' rates; name those that are much slower than the fastest.

        A worker that has a rate finds how it compares in `last_relative_prog_rate` and `is_worker_straggler`.
        """
        del state
        rate = worker_stats.get_progress_rate() if worker_stats is not None else None
        if self._trainer.position.step % self.MONITOR_PROGRESS_FREQ:
            return
        rates = [
            float(text or 0) for text in self._trainer.ring.all_gather(b"" if rate is None else str(rate).encode())
        ]
        best = max(rates)
        if rate is not None and best > 0:
            self.last_relative_prog_rate = float(rate) / best
            self.is_worker_straggler = self.last_relative_prog_rate < STRAGGLER_RATIO
        slow = [rank for rank, each in enumerate(rates) if 0 < each < best * STRAGGLER_RATIO]
        if slow and self._trainer.rank == 0:
            names = ", ".join(f"rank {rank} ({rates[rank]:g} of {best:g})" for rank in slow)
            facts.warn("straggler", f"slower than the others: {names}", ranks=slow)

    def report_progress(self, state: State) -> None:
        """Count a step that is done."""
        del state
        self._trainer.begin_step(self._count)
        self._trainer.end_step(0.0)

    def on_error(self, e: Exception) -> None:
        """Record why the workers regroup."""
        if not isinstance(e, RoundOverError):
            facts.warn("step_failed", f"the step is rolled back: {e!r}", error=repr(e))
        # The loop counts failures itself: to the trainer every one of them is the round's.
        self._trainer.fail_step(RoundOverError(str(e)))

    def _count(self) -> None:
        self._trainer.position.step += 1


def parse_init_method(url: str, max_workers: int, timeout_s: float = 600.0) -> RendezvousParameters:
    """Read `scheme://host:port/run?min_workers=&max_workers=&...`; further settings are those of the rendezvous."""
    parts = urlsplit(url)
    backend, run = SCHEMES.get(parts.scheme), parts.path.strip("/")
    if backend is None or not parts.netloc or not run:
        raise UsageError(
            f"'{url}' does not say where workers meet: write holdfast://HOST:PORT/RUN?min_workers=1&max_workers=4 "
            "or the same with etcd://"
        )
    query = dict(parse_qsl(parts.query))
    try:
        least, most = int(query.pop("min_workers", 1)), int(query.pop("max_workers", max_workers))
    except ValueError:
        raise UsageError(f"min_workers and max_workers in '{url}' must be numbers") from None
    if not 1 <= least <= most:
        raise UsageError(f"'{url}' must have 1 <= min_workers <= max_workers")
    if "timeout" in query:  # as the first torchelastic called it
        query.setdefault("join_timeout", query.pop("timeout"))
    settings = worker_settings(most, min_nodes=least, join_timeout=timeout_s)
    return RendezvousParameters(
        backend=backend, endpoint=parts.netloc, run_id=run.replace("/", "."), **{**settings, **query}
    )
