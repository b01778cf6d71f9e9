"""Plans: what each worker of a gang is to run, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Marks every process that belongs to one gang, grandchildren included; its value is the gang's token.
GANG_VARIABLE = "HOLDFAST_GANG"
#: A file that a worker makes to say that it trains in process, so that workers survive each other.
MEMBER_FILE_VARIABLE = "HOLDFAST_MEMBER_FILE"


@dataclass(frozen=True, slots=True)
class Program:
    """Any program, run as it is."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A Python script, run as `python path args` would run it."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """A Python module, run as `python -m name args` would run it."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function, run in a process of its own; its return value comes back."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    start_method: str = "spawn"


Entry = Program | Script | Module | Function


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The plan of one worker: `env` overrides the agent's environment, `cpus` are those it may run on."""

    local_rank: int
    entry: Entry
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    cpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """A worker has ended. `exit_code` is negative for a signal.

    `signalled_by_us` says that the agent had signalled this worker, to stop it, before it ended.
    """

    local_rank: int
    pid: int
    exit_code: int
    signalled_by_us: bool = False

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than with exit code 0."""
        return self.exit_code != 0
