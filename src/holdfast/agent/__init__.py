"""One node's supervisor: starts, watches, stops and restarts workers; every part can be extended."""

from holdfast.agent.api import ElasticAgent, RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.local import LocalElasticAgent
from holdfast.agent.simple import SimpleElasticAgent

__all__ = [
    "ElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]
