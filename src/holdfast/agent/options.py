"""What an agent is told about its workers: by TorchElastic's names, and beyond them."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from holdfast.agent.health import HEALTH_TIMEOUT_S
from holdfast.agent.machine import BACKOFF_S_MAX, EXIT_BARRIER_TIMEOUT_S, SHUTDOWN_TIMEOUT_S
from holdfast.timer.hang import HangOptions
from holdfast.wire.address import Endpoint
from holdfast.workers import LogsSpecs
from holdfast.workers.standbys import Opened


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What our own agent can do beyond TorchElastic's."""

    #: Modules that a template process imports once; workers are forked from it.
    preload: tuple[str, ...] = ()
    #: Whether the first workers wait for it too; else they are started at once, and it is prepared beside them.
    preload_first: bool = True
    #: How long the template is kept for the next launch of the same kind; None ends it with this one.
    keep_warm_s: float | None = None
    #: How many processes stand by on this node to take the place of workers, forked from the template.
    standbys: int = 0
    #: What they may open beforehand: nothing that the program sets afterwards must count only before that.
    standbys_open: frozenset[Opened] = frozenset({"gpu", "nccl"})
    backoff_s: float = 0.0
    backoff_s_max: float = BACKOFF_S_MAX
    forward_signals: tuple[signal.Signals, ...] = ()
    #: Bytes kept of each log file; None keeps all.
    log_bytes_max: int | None = None
    #: How long after some workers have finished the stacks of the others are reported.
    half_finished_s: float | None = None
    #: How long workers that call `holdfast.heartbeat` may be silent; None does not watch them.
    hang: HangOptions | None = None
    #: Whether to keep workers' states in this node's memory, and copies of the neighbours'.
    vault: bool = False
    #: What to tell the user once the workers can be started: how other nodes can join.
    invitation: str = ""
    #: Where the health server listens; None leaves it to TORCHELASTIC_HEALTH_CHECK_PORT.
    health: Endpoint | None = None
    #: The silence of the agent's loop after which the health server says that it hangs.
    health_timeout_s: float = HEALTH_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How workers are started and stopped, as TorchElastic's agent takes it."""

    logs_specs: LogsSpecs | None = None
    start_method: str = "spawn"
    exit_barrier_timeout_s: float = EXIT_BARRIER_TIMEOUT_S
    log_line_prefix_template: str | None = None
    shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S
    signals_to_handle: str | None = None
