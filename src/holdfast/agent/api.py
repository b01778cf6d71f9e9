"""Data of an agent: specs, worker groups, results.

The names are those of TorchElastic; a launcher written against them works here.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.coordinator.messages import Place
from holdfast.errors import UsageError
from holdfast.failures import ProcessFailure
from holdfast.rendezvous import RendezvousHandler
from holdfast.text import check_text
from holdfast.workers.plan import Module, Program, Script

DEFAULT_ROLE = "default"
#: Restarts of a job whose program does not say, and TorchElastic's interval between two looks at the workers.
MAX_RESTARTS = 3
MONITOR_INTERVAL_S = 0.1


@dataclass
class WorkerSpec:
    """What an agent runs on its node: how many workers, which program, and how it meets the other nodes."""

    role: str = DEFAULT_ROLE
    local_world_size: int = 1
    rdzv_handler: RendezvousHandler = None  # type: ignore[assignment] # checked below; earlier fields have defaults
    #: The older name of `entrypoint`.
    fn: Callable[..., Any] | None = None
    #: A function, or the program to run: its path, or one of `holdfast.workers`' Script, Module and Program.
    entrypoint: Callable[..., Any] | str | Program | Script | Module | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = MAX_RESTARTS
    monitor_interval: float = MONITOR_INTERVAL_S
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        if self.local_world_size < 1:
            raise UsageError(f"local_world_size must be at least 1, not {self.local_world_size}")
        check_text("the role (--role)", self.role)
        if self.monitor_interval <= 0:
            raise UsageError(f"monitor_interval must be more than 0 seconds, not {self.monitor_interval}")
        if self.max_restarts < 0:
            raise UsageError(f"max_restarts must not be negative, not {self.max_restarts}")
        if self.fn is not None:
            warnings.warn("WorkerSpec.fn is deprecated; use entrypoint", DeprecationWarning, stacklevel=3)
            self.entrypoint = self.entrypoint or self.fn
        if not self.entrypoint:
            raise UsageError("a WorkerSpec needs an entrypoint: a function, or the program to run")
        if self.rdzv_handler is None:
            raise UsageError("a WorkerSpec needs an rdzv_handler; see holdfast.rendezvous.get_rendezvous_handler")

    def get_entrypoint_name(self) -> str:
        """Return the function's or the program's name, for messages."""
        match self.entrypoint:
            case str():
                return self.entrypoint.rpartition("/")[2]
            case Script():
                return self.entrypoint.path.rpartition("/")[2]
            case Module():
                return self.entrypoint.name
            case Program():
                return self.entrypoint.argv[0].rpartition("/")[2]
        return getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))


class Worker:
    """One worker of a group; ranks are -1 until a round gives them."""

    __slots__ = ("global_rank", "id", "local_rank", "role_rank", "role_world_size", "world_size")

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: Any = None
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __repr__(self) -> str:
        return f"Worker({self})"

    def __str__(self) -> str:
        return (
            f"local_rank={self.local_rank},global_rank={self.global_rank},role_rank={self.role_rank},"
            f"world_size={self.world_size},role_world_size={self.role_world_size}"
        )


class WorkerState(enum.StrEnum):
    """The state of a group of workers."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Return whether workers in this state run."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class WorkerGroup:
    """The workers of one node, and what the current round says about them."""

    __slots__ = (
        "group_rank",
        "group_world_size",
        "master_addr",
        "master_port",
        "spec",
        "state",
        "store",
        "workers",
    )

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT


@dataclass
class RunResult:
    """How a run went: by global rank, what each worker returned, or how it failed."""

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Return whether any worker failed."""
        return self.state == WorkerState.FAILED


def seat(group: WorkerGroup, place: Place) -> None:
    """Number a group's workers by its node's place in a round; workers that run keep their ids."""
    spec, ids = group.spec, {worker.local_rank: worker.id for worker in group.workers}
    group.group_rank, group.group_world_size = place.group_rank, place.group_world_size
    if spec.master_addr and spec.master_port:
        group.master_addr, group.master_port = spec.master_addr, spec.master_port
    else:
        group.master_addr, group.master_port = place.master_addr, place.master_port
    group.workers = workers_at(place, spec.local_world_size)
    for worker in group.workers:
        worker.id = ids.get(worker.local_rank)


def workers_at(place: Place, local_world_size: int) -> list[Worker]:
    """Number one node's workers in a row."""
    return [
        Worker(
            local_rank,
            place.first_rank + local_rank,
            place.first_role_rank + local_rank,
            place.world_size,
            place.role_world_size,
        )
        for local_rank in range(local_world_size)
    ]
