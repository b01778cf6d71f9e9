"""Agents, handlers and launchers of your own, as TorchElastic's documents show them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import LocalElasticAgent, RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec, WorkerState
from holdfast.errors import UsageError
from holdfast.failures import ChildFailedError
from holdfast.launcher import LaunchConfig, elastic_launch
from holdfast.metrics.chosen import configure_from
from holdfast.rendezvous import RendezvousHandler, RendezvousInfo
from holdfast.store import MemoryStore, Store
from holdfast.workers import DefaultLogsSpecs


class MyRendezvousHandler(RendezvousHandler):
    """One node, without any agreement; returns the older tuple."""

    def __init__(self) -> None:
        self.rounds = 0
        self.waiting = 0
        self.was_shut_down = False

    def next_rendezvous(self) -> tuple[Store, int, int]:  # type: ignore[override]
        self.rounds += 1
        self.waiting = 0
        return MemoryStore(), 0, 1

    def get_backend(self) -> str:
        return "mine"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return self.waiting

    def get_run_id(self) -> str:
        return "run"

    def shutdown(self) -> bool:
        self.was_shut_down = True
        return True


def rank_times(factor: int) -> int:
    import os

    return int(os.environ["RANK"]) * factor


def fail_at_first(folder: str) -> str:
    marker = Path(folder) / "was-here"
    if not marker.exists():
        marker.touch()
        raise ValueError("the first time fails")
    return "second time"


def spec(entrypoint: Any, handler: RendezvousHandler, **settings: Any) -> WorkerSpec:
    return WorkerSpec(rdzv_handler=handler, entrypoint=entrypoint, monitor_interval=0.01, **settings)


def agent(worker_spec: WorkerSpec, tmp_path: Path) -> LocalElasticAgent:
    return LocalElasticAgent(worker_spec, DefaultLogsSpecs(str(tmp_path)), start_method="fork")


def test_a_function_on_a_handler_of_ones_own_returns_results_by_rank(tmp_path: Path) -> None:
    handler = MyRendezvousHandler()

    result = agent(spec(rank_times, handler, args=(10,), local_world_size=2), tmp_path).run()

    assert not result.is_failed()
    assert result.return_values == {0: 0, 1: 10}
    assert handler.rounds == 1


def test_a_failure_is_answered_with_another_rendezvous(tmp_path: Path) -> None:
    handler = MyRendezvousHandler()

    result = agent(spec(fail_at_first, handler, args=(str(tmp_path),), max_restarts=1), tmp_path).run()

    assert result.return_values == {0: "second time"}
    assert handler.rounds == 2


def test_a_polled_handler_has_a_budget_of_its_own(tmp_path: Path) -> None:
    handler = MyRendezvousHandler()

    result = agent(spec(_always_fails, handler, max_restarts=2), tmp_path).run()

    assert result.is_failed()
    assert handler.rounds == 3
    assert "always" in result.failures[0].message


def _always_fails() -> None:
    raise ValueError("always")


def test_the_older_name_of_the_entrypoint_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="use entrypoint"):
        made = WorkerSpec(local_world_size=1, fn=rank_times, rdzv_handler=MyRendezvousHandler())

    assert made.entrypoint is rank_times
    assert made.get_entrypoint_name() == "rank_times"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"local_world_size": 0}, "local_world_size must be at least 1"),
        ({"monitor_interval": 0}, "monitor_interval must be more than 0"),
        ({"entrypoint": None}, "needs an entrypoint"),
        ({"rdzv_handler": None}, "needs an rdzv_handler"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(settings: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {"rdzv_handler": MyRendezvousHandler(), "entrypoint": rank_times}
    with pytest.raises(UsageError, match=sentence):
        WorkerSpec(**{**good, **settings})


class ThreadlessAgent(SimpleElasticAgent):
    """An agent of one's own: its "workers" are entries in a list, driven by a script of states."""

    def __init__(self, worker_spec: WorkerSpec, states: list[WorkerState], handler: MyRendezvousHandler) -> None:
        super().__init__(worker_spec)
        self.states, self.handler = states, handler
        self.calls: list[str] = []

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.calls.append(f"start {[worker.global_rank for worker in worker_group.workers]}")
        return {worker.local_rank: f"id-{worker.global_rank}" for worker in worker_group.workers}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.calls.append("stop")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        state = self.states.pop(0)
        if state == WorkerState.UNKNOWN:
            self.handler.waiting, state = 1, WorkerState.HEALTHY
        return RunResult(state, return_values={0: "done"} if state == WorkerState.SUCCEEDED else {})

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self.calls.append("shutdown")


def test_an_agent_of_ones_own_fills_in_four_methods() -> None:
    handler = MyRendezvousHandler()
    states = [WorkerState.HEALTHY, WorkerState.FAILED, WorkerState.HEALTHY, WorkerState.SUCCEEDED]
    mine = ThreadlessAgent(spec("unused", handler, local_world_size=2), states, handler)

    result = mine.run()

    assert result.return_values == {0: "done"}
    assert mine.calls == ["start [0, 1]", "stop", "start [0, 1]", "shutdown"]
    assert [worker.id for worker in mine.get_worker_group().workers] == ["id-0", "id-1"]


def test_a_polled_handlers_waiting_node_makes_the_agent_start_anew() -> None:
    handler = MyRendezvousHandler()
    mine = ThreadlessAgent(spec("unused", handler), [WorkerState.UNKNOWN, WorkerState.SUCCEEDED], handler)

    mine.run()

    assert mine.calls == ["start [0]", "stop", "start [0]", "shutdown"]
    assert handler.rounds == 2


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchConfig:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(str(tmp_path)),
    )


def test_elastic_launch_returns_results_by_rank(config: LaunchConfig) -> None:
    assert elastic_launch(config, rank_times)(7) == {0: 0, 1: 7}


def test_elastic_launch_raises_the_failures_of_workers(config: LaunchConfig) -> None:
    with pytest.raises(ChildFailedError, match="always") as caught:
        elastic_launch(config, _always_fails)()

    assert caught.value.get_first_failure()[1].exitcode == 1


def test_rendezvous_info_of_a_handler_is_what_users_expect() -> None:
    info = RendezvousInfo(MemoryStore(), 0, 1, None)

    assert (info.rank, info.world_size) == (0, 1)


def add_a_value() -> None:
    from holdfast import metrics

    metrics.getStream("my_app").add_value("loss", 0.5)


def test_workers_of_a_launcher_of_your_own_have_the_sinks_that_it_chose(tmp_path: Path) -> None:
    chosen = configure_from([f"my_app=jsonl:{tmp_path / 'metrics.jsonl'}"])
    try:
        spec = WorkerSpec(local_world_size=2, rdzv_handler=MyRendezvousHandler(), entrypoint=add_a_value)
        result = LocalElasticAgent(spec, DefaultLogsSpecs(str(tmp_path))).run()
    finally:
        chosen.close()

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert not result.is_failed()
    assert sorted((line["group"], line["name"], line["rank"]) for line in lines) == [
        ("my_app", "loss", 0),
        ("my_app", "loss", 1),
    ]
