"""One node's supervisor: asks for rounds; starts, watches, stops and restarts workers.

The classes that users extend, with TorchElastic's names, are adapters around it; they are imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.agent.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.hangs import TORCHELASTIC_ENABLE_FILE_TIMER
from holdfast.timer.api import TIMER_FILE_VARIABLE as TORCHELASTIC_TIMER_FILE

if TYPE_CHECKING:
    from holdfast.compat.elastic.agent import ElasticAgent, LocalElasticAgent, SimpleElasticAgent

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_TIMER_FILE",
    "ElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.compat.elastic import agent

    return getattr(agent, name)


def __dir__() -> list[str]:
    return __all__
