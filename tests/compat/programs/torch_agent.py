"""Agents that extend torch's: which of their methods are called, and what they find."""

import functools
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.api import RunResult, _RoleInstanceInfo
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler


class Traced(LocalElasticAgent):
    """Counts the calls of what agents in the wild override."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls: Counter[str] = Counter()
        super().__init__(*args, **kwargs)

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        self.calls["initialize"] += 1
        super()._initialize_workers(worker_group)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self.calls["restart"] += 1
        super()._restart_workers(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.calls["start"] += 1
        return super()._start_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.calls["stop"] += 1
        super()._stop_workers(worker_group)

    def _record_metrics(self, group_results: RunResult) -> None:
        print("metrics", group_results.state.name, self._total_execution_time >= 0)
        super()._record_metrics(group_results)

    def _record_flakiness_metric(self, is_failed: bool = False) -> None:
        print("flakiness", is_failed)
        super()._record_flakiness_metric(is_failed)

    def _record_worker_events(self, result: RunResult) -> None:
        print("events", result.state.name)
        super()._record_worker_events(result)


def works() -> str:
    return "done"


def fails() -> None:
    raise ValueError("always")


def fails_once() -> str:
    if not Path("was-here").exists():
        Path("was-here").touch()
        raise ValueError("once")
    return "done"


def show(function: Any, max_restarts: int) -> None:
    handler = get_rendezvous_handler(
        RendezvousParameters("c10d", "localhost:0", "run", 1, 1, is_host=True, last_call_timeout=1)
    )
    spec = WorkerSpec("role", 1, handler, entrypoint=function, max_restarts=max_restarts, monitor_interval=0.1)
    agent = Traced(spec, DefaultLogsSpecs(str(Path.cwd() / "logs")), start_method="spawn")
    result = agent.run()
    handler.shutdown()
    print(result.state.name, result.return_values, agent.get_worker_group().state.name, agent._remaining_restarts)
    print(sorted(agent.calls.items()))
    agent._total_execution_time = 77
    event = agent.get_event_succeeded()
    print(event.name, event.source.name, event.metadata["total_run_time"], event.metadata["run_id"])


def show_roles() -> None:
    infos = [_RoleInstanceInfo(role, rank, 1) for rank, role in enumerate(["b", "a", "b", "c"])]
    infos = sorted(infos, key=functools.cmp_to_key(_RoleInstanceInfo.compare))
    print([(info.role, info.rank) for info in infos])
    print([_RoleInstanceInfo.find_role_boundaries(infos, role) for role in ("a", "b", "c", "d")])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    show_roles()
    show(works, 0)
    show(fails_once, 1)
    show(fails, 1)
