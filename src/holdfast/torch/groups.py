"""Process groups that live as long as a round, and end with it at once.

Every round has a default group of its own, with store keys that only this round can see. When the round is over,
`RoundGroups.abort` ends every collective that waits: gloo's by shutting its connections down. For NCCL's collectives
the host waits while watching the round (see `device`), and their groups are aborted in the background (see
`retired`). The next round then makes its group in the same process, in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from holdfast.errors import HoldfastError, RoundOverError, StoreTimeoutError, UsageError
from holdfast.quantities import to_seconds
from holdfast.store import PrefixStore
from holdfast.torch.device import DeviceSums, is_lost
from holdfast.torch.randomness import cuda_in_use
from holdfast.torch.retired import abort_later, backends_of, forget_groups
from holdfast.torch.sockets import GlooSockets, NcclSockets
from holdfast.torch.store import TorchStore

if TYPE_CHECKING:
    from holdfast.store.api import Store
    from holdfast.train.given import Rounds
    from holdfast.train.membership import RoundView

T = TypeVar("T")

#: How long a collective may take. Peers that are gone or frozen end it much sooner.
TIMEOUT_S = 1800.0
#: gloo cannot be told to give up while it connects, so it gets this long for each of its five tries.
CONNECT_S = 1.0
#: A wait for a peer's key checks this often whether the round is over.
LOOK_S = 0.05
#: Bytes travel in pieces of this size.
PIECE_BYTES = 64 * 1024 * 1024
#: A peer of a round that stands is waited for at least this long, whatever torch says.
PATIENCE_S = 60.0


class Maker(Protocol):
    """How the process groups of a round are made."""

    def make(self, backend: str, store: TorchStore, view: RoundView, timeout_s: float) -> None:
        """Make the group that the workers of a round talk through."""

    def reduce(self, tensor: torch.Tensor) -> Any:
        """Begin to sum a tensor over that group, in place; returns torch's `Work`."""

    def send(self, tensor: torch.Tensor, source: int) -> Any:
        """Begin to send a tensor from one rank to all others; returns torch's `Work`."""

    def set_timeout(self, timeout_s: float) -> None:
        """Change how long a collective may take."""

    def operations(self) -> int:
        """How many collectives have been begun; it only grows within a round."""

    def backends(self) -> list[Any]:
        """What stands behind the groups."""

    def drop(self, *, aborting: bool) -> None:
        """Let go of the groups; `aborting` where they are being aborted in the background."""


class DefaultGroups:
    """Every round has a default group of torch's own, and what the program makes beside it."""

    def make(self, backend: str, store: TorchStore, view: RoundView, timeout_s: float) -> None:
        """Make the default group."""
        if dist.is_initialized():
            raise UsageError(
                "there is a process group already: leave init_process_group to holdfast, which makes one a round"
            )
        # torch counts groups to name them, and a group that could not be formed leaves its count behind: workers that
        # formed theirs would then wait under another name.
        c10d._world.group_count = 0
        dist.init_process_group(
            backend,
            store=store,
            rank=view.rank,
            world_size=view.world_size,
            timeout=timedelta(seconds=timeout_s),
        )

    def reduce(self, tensor: torch.Tensor) -> Any:
        """Begin to sum a tensor over the default group."""
        return dist.all_reduce(tensor, async_op=True)

    def send(self, tensor: torch.Tensor, source: int) -> Any:
        """Begin to send a tensor over the default group."""
        return dist.broadcast(tensor, source, async_op=True)

    def set_timeout(self, timeout_s: float) -> None:
        """Change how long a collective of the default group may take."""
        c10d._set_pg_timeout(timedelta(seconds=timeout_s))

    def operations(self) -> int:
        """Count the collectives of all groups."""
        begun = 0
        groups: list[Any] = list(c10d._world.pg_map)
        for group in groups:
            with contextlib.suppress(RuntimeError):  # a backend that does not count
                begun += int(group._get_sequence_number_for_group())
        return begun

    def backends(self) -> list[Any]:
        """What stands behind all groups that torch knows."""
        return backends_of(list(c10d._world.pg_map))

    def drop(self, *, aborting: bool) -> None:
        """Make torch forget all its groups."""
        if aborting:
            forget_groups()
        else:
            dist.destroy_process_group()


class RoundGroups:
    """The process groups of one round at a time; `abort` may be called from any thread."""

    def __init__(
        self, backend: str = "gloo", timeout: timedelta | float = TIMEOUT_S, maker: Maker | None = None
    ) -> None:
        if not dist.is_available():
            raise UsageError("this torch was built without torch.distributed: use the ring (backend='ring')")
        self._maker: Maker = DefaultGroups() if maker is None else maker
        self.backend = backend
        self.timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        self._lock = threading.Lock()
        self._sockets = GlooSockets()
        #: What NCCL opens while it makes a communicator.
        self._connects: NcclSockets | None = None
        self._store: TorchStore | None = None
        self._excepthook: Any = None
        self._formed = False
        #: How many collectives are known to have done their work.
        self._settled = 0
        #: Up to which one all collectives since then are sums that `begin_sum` has begun.
        self._summed = 0
        #: Whether NCCL's groups of this round are being aborted.
        self._aborting = False
        #: Set when this round's groups are closed.
        self._closed = threading.Event()
        #: Why the groups cannot be used any more.
        self.aborted: str | None = None
        #: Sums gradients so that the host knows when a sum is complete; None if they are complete when they return.
        self.device_sums: DeviceSums | None = None
        _all.add(self)

    # -- one round -------------------------------------------------------------------------------------------------

    def form(self, view: RoundView, membership: Rounds | None = None) -> None:
        """Make the default group of a round; raises `RoundOverError` where the round did not last until then."""
        self.close()
        self.aborted, self._aborting, self._settled, self._summed = None, False, 0, 0
        self._closed = threading.Event()
        if membership is not None:
            membership.on_break(self.abort)
        self._store = TorchStore(_RoundStore(view.store, lambda: self.aborted))
        self._excepthook = sys.excepthook  # torch wraps it with every group
        connect_s = min(self.timeout_s, CONNECT_S) if self.is_gloo else self.timeout_s
        try:
            with self._sockets.watching(), _errors_are_ours(self.backend):
                self._maker.make(self.backend, self._store, view, connect_s)
            self._formed = True
            self._check()
            if self.is_nccl:
                self.device_sums = DeviceSums(self._maker.reduce, lambda: self.aborted, self.timeout_s)
                # The communicator is made by the first collective. Better here, where all wait for it, than in a step.
                with self._connecting():
                    self.device_sums.begin(torch.zeros(1, device="cuda"))()
            if self.is_gloo:
                self._maker.set_timeout(self.timeout_s)
        except (RuntimeError, OSError, HoldfastError) as error:
            self.close()
            if isinstance(error, UsageError) or is_lost():
                raise
            raise RoundOverError(self.aborted or f"the process group was not formed: {error}") from error

    def new_group(self, ranks: Sequence[int] | None = None, **options: Any) -> Any:
        """Make a group of some ranks, as `torch.distributed.new_group` does; it too ends with the round."""
        with self._sockets.watching(), _errors_are_ours(self.backend):
            group = dist.new_group(None if ranks is None else list(ranks), **options)
        self._check()
        return group

    def abort(self, reason: str) -> None:
        """End every running collective, and all later ones."""
        with self._lock:
            self.aborted = self.aborted or reason
            if self._formed:
                self._end_waits()

    def close(self) -> None:
        """Release the groups of the round; safe to call at any time."""
        with self._lock:
            self.aborted = self.aborted or "the round's groups are closed"
            formed, self._formed = self._formed, False
            if formed:
                self._end_waits()
            self._sockets.forget()
        self._closed.set()
        if formed:
            self._maker.drop(aborting=self.is_nccl)
            self.device_sums = None
        if self._excepthook is not None:
            sys.excepthook, self._excepthook = self._excepthook, None
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def is_gloo(self) -> bool:
        """Whether every collective is complete when it returns, and can be ended."""
        return self.backend == "gloo"

    @property
    def is_nccl(self) -> bool:
        """Whether collectives continue on the device after they have returned."""
        return self.backend == "nccl"

    def settle(self) -> None:
        """Wait until every collective so far has done its work; raises `RoundOverError` if one never will.

        If none was begun since the last time there is nothing to wait for, even if the round is over meanwhile: a
        step whose sums are complete counts.
        """
        begun = self.operations()
        if self.is_gloo or begun == self._settled:
            return
        if self.device_sums is not None:
            self.device_sums.settle()
        elif cuda_in_use():
            torch.cuda.current_stream().synchronize()
        self._check()  # an abort ends a collective too, with undefined sums
        self._settled = begun

    def operations(self) -> int:
        """How many collectives the round's groups have begun; it only grows within a round."""
        return self._maker.operations() if self._formed else 0

    def begin_sum(self, tensor: torch.Tensor) -> Callable[[], Any]:
        """Begin to sum a tensor over all workers, in place; what is returned waits for the end."""
        if self.device_sums is None:
            work = self._maker.reduce(tensor)
            return work.wait  # type: ignore[no-any-return, unused-ignore]
        before = self.operations()
        wait_device = self.device_sums.begin(tensor)
        begun = self.operations()
        # Another thread may have begun a collective meanwhile: then there are more than this one.
        if before in (self._settled, self._summed) and begun == before + 1:
            self._summed = begun

        def wait() -> None:
            wait_device()
            self._check()  # an abort ends a sum too, with undefined values
            if begun == self._summed:
                self._settled = begun  # sums end in their order, and are all there is: `settle` need not wait again

        return wait

    def broadcast(self, mine: bytes | None, source: int) -> bytes:
        """Send bytes from one rank to all others; raises `RoundOverError` where that did not come to its end."""
        device = "cuda" if self.is_nccl else "cpu"
        try:
            size = torch.tensor([0 if mine is None else len(mine)], device=device)
            self._send(size, source)
            parts, total = [], int(size.item())
            for start in range(0, total, PIECE_BYTES):
                stop = min(start + PIECE_BYTES, total)
                if mine is not None:
                    piece = torch.frombuffer(bytearray(mine[start:stop]), dtype=torch.uint8).to(device)
                else:
                    piece = torch.empty(stop - start, dtype=torch.uint8, device=device)
                self._send(piece, source)
                parts.append(piece.cpu().numpy().tobytes() if mine is None else b"")
        except (RuntimeError, OSError) as error:
            raise error if isinstance(error, RoundOverError) else RoundOverError(self.aborted or str(error)) from error
        return b"".join(parts) if mine is None else mine

    def exchange(self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Send and receive tensors, each to or from a rank of the default group, all at the same time."""
        if not sends and not receives:
            return
        self._check()
        pieces = [tensor for tensor, _ in (*sends, *receives)]
        in_flight = [] if self.device_sums is None else self.device_sums.in_flight
        in_flight += pieces
        operations = [dist.P2POp(dist.isend, tensor, peer) for tensor, peer in sends]
        operations += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in receives]
        try:
            for work in dist.batch_isend_irecv(operations):
                self._wait(work)
        except (RuntimeError, OSError) as error:
            raise error if isinstance(error, RoundOverError) else RoundOverError(self.aborted or str(error)) from error
        del in_flight[-len(pieces) :]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _send(self, tensor: torch.Tensor, source: int) -> None:
        self._wait(self._maker.send(tensor, source))

    def _wait(self, work: Any) -> None:
        if self.device_sums is not None:
            self.device_sums.wait(work)
        else:
            work.wait()

    def _check(self) -> None:
        if self.aborted is not None:
            raise RoundOverError(self.aborted)

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[None]:
        """Let `abort` end a communicator that is being made meanwhile."""
        connects = NcclSockets()
        with self._lock:
            self._check()
            self._connects = connects
        try:
            yield
        finally:
            with self._lock:
                self._connects = None
            connects.close()

    def _end_waits(self) -> None:
        self._sockets.shut_down()
        if self.is_gloo:
            return
        if self.is_nccl:
            if not self._aborting:
                self._aborting = True
                if self._connects is not None:
                    self._connects.end()
                in_flight = [] if self.device_sums is None else [self.device_sums.in_flight]
                abort_later(self._maker.backends(), in_flight, self._closed)
            return
        for backend in self._maker.backends():
            with contextlib.suppress(RuntimeError, AttributeError):
                backend.abort()


class _RoundStore(PrefixStore):
    """A round's keys for torch. A wait for a peer's key ends when the round is over."""

    def __init__(self, store: Store, over: Callable[[], str | None]) -> None:
        super().__init__("torch", store)
        self._over = over

    def get(self, key: str, timeout: timedelta | float | None = None) -> bytes:
        """Return a key's value, waiting until it has one."""
        return self._in_slices(timeout, lambda limit: super(_RoundStore, self).get(key, limit))

    def multi_get(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> list[bytes]:
        """Return the values of all keys in their order, waiting until every one is there."""
        return self._in_slices(timeout, lambda limit: super(_RoundStore, self).multi_get(keys, limit))

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Return once every key is there."""
        self._in_slices(timeout, lambda limit: super(_RoundStore, self).wait(keys, limit))

    def clone(self) -> _RoundStore:
        """Return another object for the same keys with a timeout of its own."""
        return _RoundStore(self.underlying_store.clone(), self._over)

    def _in_slices(self, timeout: timedelta | float | None, ask: Callable[[float], T]) -> T:
        limit_s = max(to_seconds(self.timeout if timeout is None else timeout), PATIENCE_S)
        deadline = time.monotonic() + limit_s
        while True:
            if (reason := self._over()) is not None:
                raise RoundOverError(reason)
            left_s = deadline - time.monotonic()
            try:
                return ask(max(min(left_s, LOOK_S), 0.0))
            except StoreTimeoutError:
                if left_s <= LOOK_S:
                    raise


#: When a collective of NCCL fails or takes too long, torch ends the process. Here only the round ends.
_OUR_ERRORS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    # A communicator that is still being made can then be aborted too.
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
}


@contextlib.contextmanager
def _errors_are_ours(backend: str) -> Iterator[None]:
    """Turn off torch's handling of NCCL's errors in groups that are made meanwhile; torch reads this at that moment."""
    if backend != "nccl":
        yield
        return
    before = {name: os.environ.get(name) for name in _OUR_ERRORS}
    os.environ.update(_OUR_ERRORS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_all: weakref.WeakSet[RoundGroups] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child (a data loader's worker) must not keep its parent's connections open."""
    for groups in list(_all):
        groups._lock = threading.Lock()
        groups._sockets.close_in_child()


os.register_at_fork(after_in_child=_after_fork)
