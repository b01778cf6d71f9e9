"""Replicas for torch: models that are larger than one device, as one copy on some workers of a node, or of several.

    replica = holdfast.torch.replica("node")     # torch's default process group is now that of this replica
    model = Transformer().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer)
    with holdfast.torch.elastic(state, replicas_of="node") as run:
        for step, (inputs, labels) in run.batches(dataset, batch=64):
            with step:
                ...                               # as ever; reduce_gradients averages over the replicas

The default group lives as long as the process: sharding, tensor parallelism and the program's own groups stand on it
and need to know nothing of rounds. Workers that hold the same part in different replicas form a *column*; a column's
group is made anew for every round, and gradients are averaged over it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh

from holdfast.coordinator.machine import run_space
from holdfast.errors import RoundOverError, UsageError
from holdfast.facts import facts
from holdfast.quantities import to_seconds
from holdfast.store.environ import ENDPOINT_VARIABLE, from_environ
from holdfast.torch.groups import TIMEOUT_S
from holdfast.torch.store import TorchStore
from holdfast.train.membership import Membership
from holdfast.train.replica import FollowerRounds, Follows, Leads
from holdfast.train.replica_lines import FolderMeeting, FollowerEnd, LeaderEnd, StoreMeeting, meet
from holdfast.wire.address import parse_endpoint
from holdfast.workers.plan import MEMBER_FILE_VARIABLE

if TYPE_CHECKING:
    from holdfast.store.client import StoreClient
    from holdfast.train.given import Decider, Rounds
    from holdfast.train.machine import TrainerMachine
    from holdfast.train.membership import RoundView

#: How long a worker whose replica is lost has to end by itself, and its exit code where it does not.
LOST_GRACE_S = 2.0
LOST_EXIT_CODE = 1

#: Which workers get different samples: every one, or only those of different replicas.
Data = Literal["worker", "replica"]


class Replica:
    """The workers that hold one copy of the model together; made by `replica`."""

    def __init__(
        self, index: int, size: int, backend: str, end: LeaderEnd | FollowerEnd, *, spans: bool = False
    ) -> None:
        #: Which part of the model this worker holds, and how many parts there are.
        self.index = index
        self.size = size
        self.backend = backend
        #: Whether it is on several nodes.
        self.spans = spans
        self._end = end

    @property
    def device_type(self) -> str:
        """Where the parts are: "cuda" or "cpu"."""
        return "cuda" if self.backend == "nccl" else "cpu"

    @property
    def mesh(self) -> DeviceMesh:
        """The workers of this replica, in one dimension; what `fully_shard` uses by default."""
        return DeviceMesh(self.device_type, list(range(self.size)), mesh_dim_names=("shard",))

    def rounds(self, join: Callable[[], Membership]) -> Rounds:
        """Return how this worker takes part in rounds; `join` makes the membership of a leader."""
        on_lost = partial(end_with_replica, self._end) if self.spans else None
        if isinstance(self._end, FollowerEnd):
            return FollowerRounds(self._end, on_lost)
        if on_lost is not None:
            self._end.watch(on_lost)
        return join()

    def decider(self, rounds: Rounds) -> Callable[[TrainerMachine], Decider]:
        """Return how it is decided for this worker what follows from an event."""
        end = self._end
        if isinstance(end, LeaderEnd):
            return lambda machine: Leads(machine, end)
        assert isinstance(rounds, FollowerRounds)
        return lambda _: Follows(end, rounds)

    def agree(self, act: Callable[[], object]) -> None:
        """Do something with the other replicas; raises `RoundOverError` on all workers of this one if it fails on any.

        So none of them waits for another one that has given the step up, and none changes its part of the state alone.
        """
        try:
            act()
        except (RuntimeError, OSError) as error:
            self._end.fail(str(error))
            raise error if isinstance(error, RoundOverError) else RoundOverError(str(error)) from error
        self._end.exchange(0.0, lambda total: total)

    def sum(self, value: float, total: Callable[[float], float]) -> float:
        """Add up a number over this replica, let the leader make `total` of it, and return the result to all."""
        return self._end.exchange(value, total)

    def gather(self, mine: bytes) -> list[bytes]:
        """Send each worker's bytes to all workers of this replica, in the order of their parts."""
        device = self.device_type
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(mine)], device=device))
        longest = max(int(size.item()) for size in sizes)
        padded = torch.zeros(max(longest, 1), dtype=torch.uint8, device=device)
        if mine:
            padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded)
        return [each[: int(size.item())].cpu().numpy().tobytes() for each, size in zip(found, sizes, strict=True)]


class ColumnGroup:
    """The workers with one part of the model in all replicas of a round: a group that torch does not know."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._group: Any = None
        self._timeout = timedelta(seconds=TIMEOUT_S)
        self._begun = 0

    def make(self, backend: str, store: TorchStore, view: RoundView, timeout_s: float) -> None:
        """Make the group of this column."""
        keys = c10d.PrefixStore(f"column {self._index}", store)
        self._begun = 0
        self._timeout = timedelta(seconds=timeout_s)
        if backend == "gloo":
            self._group = c10d.ProcessGroupGloo(keys, view.rank, view.world_size, self._timeout)
        else:
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            self._group = c10d.ProcessGroupNCCL(keys, view.rank, view.world_size, options)

    def reduce(self, tensor: torch.Tensor) -> Any:
        """Begin to sum a tensor over the column."""
        options = c10d.AllreduceOptions()
        options.timeout = self._timeout
        self._begun += 1
        return self._group.allreduce([tensor], options)

    def send(self, tensor: torch.Tensor, source: int) -> Any:
        """Begin to send a tensor from one replica's worker to all others."""
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = source, 0, self._timeout
        self._begun += 1
        return self._group.broadcast([tensor], options)

    def set_timeout(self, timeout_s: float) -> None:
        """Change how long a collective may take."""
        self._timeout = timedelta(seconds=timeout_s)

    def operations(self) -> int:
        """How many collectives have been begun."""
        return self._begun

    def backends(self) -> list[Any]:
        """The group itself."""
        return [] if self._group is None else [self._group]

    def drop(self, *, aborting: bool) -> None:
        """Let go of the group."""
        del aborting
        self._group = None


def replica(of: str | int = "node", *, backend: str = "auto", timeout: timedelta | float = TIMEOUT_S) -> Replica:
    """Make torch's default process group that of this worker's replica, and return the replica.

    `of` says which workers hold one copy of the model: "node" for all workers of a node; a number that divides them,
    which takes neighbours; or a number that they divide, which takes those of neighbouring nodes. Call it before the
    model is sharded; `elastic(state, replicas_of=...)` finds it.
    """
    global _present
    size, number, index = _divide(of)
    spans = size > int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if _present is not None:
        if _present.size != size:
            raise UsageError(f"this worker is in a replica of {_present.size} already, not in one of {size}")
        if backend not in ("auto", _present.backend):
            raise UsageError(
                f"this worker's replica talks through {_present.backend} already, not through {backend}: "
                "give the backend to holdfast.torch.replica"
            )
        return _present
    if dist.is_initialized():
        raise UsageError("there is a process group already: leave init_process_group to holdfast.torch.replica")
    member_file = os.environ.get(MEMBER_FILE_VARIABLE)
    if not member_file:
        raise UsageError(f"this process has no agent (${MEMBER_FILE_VARIABLE} is not set): use `holdfast launch`")
    if backend == "auto":
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    _check_backend(backend)
    # From now on the agent ends and replaces the workers of a replica together.
    Path(member_file).write_text(str(size))
    folder, name = Path(member_file).parent.parent, f"replica-{number}"
    store: Any
    if spans:
        keys = _run_store()
        end = meet(StoreMeeting(keys, name, _own_address()), name, index, size)
        store = c10d.PrefixStore(f"replicas/{name}/{end.token[:16]}", TorchStore(keys))
    else:
        end = meet(FolderMeeting(folder, name), name, index, size)
        store = FileStore(str(folder / f"{name}.store"), size)
    dist.init_process_group(
        backend,
        store=store,
        rank=index,
        world_size=size,
        timeout=timedelta(seconds=to_seconds(timeout)),
    )
    _present = Replica(index, size, backend, end, spans=spans)
    return _present


def _check_backend(backend: str) -> None:
    if backend not in ("gloo", "nccl"):
        raise UsageError(f"replicas talk through gloo or nccl, not through '{backend}'")


#: This process's replica, once it has one.
_present: Replica | None = None


def _divide(of: str | int) -> tuple[int, int, int]:
    """Return the size of a replica, which of its node's this worker is in, and which part it holds."""
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if of == "node":
        size = workers
    elif isinstance(of, int) or of.isdigit():
        size = int(of)
    else:
        raise UsageError(f"replicas_of is 'node' or a number of workers, not {of!r}")
    if size > workers:
        return _divide_nodes(size, workers)
    if size < 1 or workers % size:
        raise UsageError(
            f"a replica of {size} workers does not fit a node of {workers}: use a number that divides {workers}, or a "
            "multiple of it"
        )
    return size, local_rank // size, local_rank % size


def _divide_nodes(size: int, workers: int) -> tuple[int, int, int]:
    """Return the size of a replica on several nodes, which of the run's this worker is in, and which part it holds."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if size % workers or world_size % size:
        raise UsageError(
            f"replicas of {size} workers do not fit nodes of {workers}, {world_size} workers in all: use a multiple of "
            f"{workers} that divides {world_size}, and launch with a fixed number of nodes"
        )
    return size, rank // size, rank % size


def end_with_replica(end: LeaderEnd | FollowerEnd) -> None:
    """End this worker, which cannot go on without one that is gone, unless it ends by itself; called by a thread."""
    time.sleep(LOST_GRACE_S)
    if not end.is_closed:
        facts.warn("replica_lost", "a worker of the same replica, on another node, is gone; this one ends with it")
        os._exit(LOST_EXIT_CODE)


def _run_store() -> StoreClient:
    """Return the keys that last as long as the run: the workers of a replica may have been started in other rounds."""
    return from_environ().within(run_space(os.environ.get("TORCHELASTIC_RUN_ID", "none")))


def _own_address() -> str:
    """Return this host's address as the coordinator's host sees it."""
    where = parse_endpoint(os.environ[ENDPOINT_VARIABLE])
    with socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((where.host, where.port))
        return str(probe.getsockname()[0])
