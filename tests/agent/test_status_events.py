"""Events that a launcher written for TorchElastic asks its agent for."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.agent import LocalElasticAgent, Worker, WorkerSpec
from holdfast.events import EventSource
from tests.agent.test_extension import MyRendezvousHandler


def make(event_log_handler: str = "null") -> LocalElasticAgent:
    spec = WorkerSpec("trainer", 1, MyRendezvousHandler(), entrypoint=print, event_log_handler=event_log_handler)
    return LocalElasticAgent(spec)


def test_an_agent_says_how_its_run_went() -> None:
    agent = make()

    good = agent.get_event_succeeded()
    try:
        raise ValueError("why")
    except ValueError:
        bad = agent.get_event_failed()

    assert (good.name, good.source) == ("torchelastic.worker.status.SUCCEEDED", EventSource.AGENT)
    assert (good.metadata["role"], good.metadata["run_id"], good.metadata["rdzv_backend"]) == ("trainer", "run", "mine")
    assert bad.name == "torchelastic.worker.status.FAILED"
    assert "ValueError: why" in str(bad.metadata["raw_error"])


def test_a_worker_has_events_of_its_own() -> None:
    event = make()._construct_event("FAILED", EventSource.WORKER, Worker(1, 3, 2, 4, 4), exit_code=7, worker_pid=11)

    assert (event.source, event.metadata["global_rank"]) == (EventSource.WORKER, 3)
    assert (event.metadata["exit_code"], event.metadata["worker_pid"]) == (7, 11)
    nested = json.loads(str(event.metadata["metadata"]))
    assert (nested["local_rank"], nested["role_rank"]) == ([1], [2])


def test_a_duration_is_recorded_where_events_go(tmp_path: Path) -> None:
    agent = make(f"jsonl:{tmp_path / 'events'}")

    with agent.record_duration("RENDEZVOUS"):
        pass
    from holdfast.events import close_all

    close_all()

    (line,) = (tmp_path / "events").read_text().splitlines()
    assert "torchelastic.worker.status.RENDEZVOUS" in line
    assert json.loads(line)["metadata"]["duration_ms"] >= 0
