"""One node's supervisor: starts, watches, stops and restarts workers; every part can be extended."""

from holdfast.agent.api import ElasticAgent, RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.hangs import TORCHELASTIC_ENABLE_FILE_TIMER
from holdfast.agent.local import LocalElasticAgent
from holdfast.agent.simple import SimpleElasticAgent
from holdfast.timer.api import TIMER_FILE_VARIABLE as TORCHELASTIC_TIMER_FILE

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
