"""Facts become events: TorchElastic's for workers' states, ours for everything."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from holdfast import events
from holdfast.events import Event, EventHandler, EventSource
from holdfast.events.platform import RunContext, event_of
from holdfast.events.recording import EventFeed
from holdfast.facts import WARNING, Fact, facts
from tests.events.conftest import Collecting

CONTEXT = RunContext("job", "host-a", 7, node="ab", role="trainer", rdzv_backend="c10d", entrypoint="train.py")
STARTED = Fact("workers_started", "s", {"group_rank": 1, "group_world_size": 4, "restarts_used": 2, "pids": [5, 6]})


def test_a_workers_state_becomes_torchelastics_event() -> None:
    data = {
        "role": "trainer",
        "state": "FAILED",
        "global_rank": 9,
        "local_rank": 1,
        "worker_id": 4711,
        "raw_error": '{"message": "boom"}',
        "source": "WORKER",
        "total_run_time": 12,
        "duration_ms": 3,
    }

    event = event_of(Fact("worker_status", "s", data, timestamp=5.5), CONTEXT.after(STARTED))

    assert event is not None
    assert (event.name, event.source, event.timestamp) == (
        "torchelastic.worker.status.FAILED",
        EventSource.WORKER,
        5.5,
    )
    assert json.loads(str(event.metadata.pop("metadata"))) == {
        "group_world_size": 4,
        "entry_point": "train.py",
        "local_rank": [1],
    }
    assert event.metadata == {
        "run_id": "job",
        "global_rank": 9,
        "group_rank": 1,
        "worker_id": 4711,
        "role": "trainer",
        "hostname": "host-a",
        "state": "FAILED",
        "total_run_time": 12,
        "rdzv_backend": "c10d",
        "raw_error": '{"message": "boom"}',
        "agent_restarts": 2,
        "duration_ms": 3,
    }


def test_the_agents_own_state_has_no_rank() -> None:
    event = event_of(Fact("worker_status", "s", {"state": "SUCCEEDED", "source": "AGENT"}), CONTEXT)

    assert event is not None
    assert (event.name, event.source) == ("torchelastic.worker.status.SUCCEEDED", EventSource.AGENT)
    assert event.metadata["global_rank"] is event.metadata["worker_id"] is event.metadata["raw_error"] is None


@pytest.mark.parametrize(
    "kind",
    ["rendezvous", "workers_started", "worker_failed", "workers_stopped", "run_ended", "hang", "round_sealed", "new"],
)
def test_every_other_fact_becomes_an_event_of_its_kind(kind: str) -> None:
    event = event_of(Fact(kind, "it happened", {"round": 2, "run": "job"}, WARNING, 5.5, number=8), CONTEXT)

    assert event == Event(
        f"holdfast.{kind}",
        EventSource.AGENT,
        5.5,
        {
            "run_id": "job",
            "hostname": "host-a",
            "node": "ab",
            "pid": 7,
            "role": "trainer",
            "group_rank": None,
            "level": "warning",
            "sentence": "it happened",
            "number": 8,
            "round": 2,
        },
    )


def test_metadata_holds_only_plain_values() -> None:
    event = event_of(Fact("k", "s", {"pids": [5, 6], "path": Path("/x"), "deep": {"a": None}}), CONTEXT)

    assert event is not None
    assert (event.metadata["pids"], event.metadata["deep"]) == ("[5, 6]", '{"a": null}')
    assert Event.deserialize(event.serialize()) == event


def test_waits_and_facts_of_other_runs_are_no_events() -> None:
    assert event_of(Fact("waiting", "2 of 4 nodes"), CONTEXT) is None
    assert event_of(Fact("round_sealed", "s", {"run": "other"}), CONTEXT) is None


def test_a_feed_records_facts_as_events_with_what_it_has_learned(collecting: Collecting) -> None:
    events.configure(collecting)

    with EventFeed("null", CONTEXT):
        facts.publish(STARTED)
        facts.publish(Fact("waiting", "no event"))
        facts.publish(Fact("worker_status", "s", {"state": "HEALTHY"}))
    facts.publish(Fact("afterwards", "nobody hears"))

    names = [event.name for event in collecting.events]
    assert names == ["holdfast.workers_started", "torchelastic.worker.status.HEALTHY"]
    assert collecting.events[1].metadata["group_rank"] == 1
    assert all(event.timestamp > 0 for event in collecting.events)


def test_a_feed_sends_to_what_the_spec_names(tmp_path: Path) -> None:
    with EventFeed(f"jsonl:{tmp_path / 'f'}", CONTEXT):
        facts.publish(STARTED)
    events.close_all()

    assert Event.deserialize((tmp_path / "f").read_text()).metadata["pids"] == "[5, 6]"


def test_a_configured_handler_that_blocks_does_not_block_the_publisher() -> None:
    release, entered = threading.Event(), threading.Event()

    class Blocking(EventHandler):
        def record(self, event: Event) -> None:
            entered.set()
            release.wait()

    events.configure(Blocking())
    with EventFeed("null", CONTEXT):
        facts.publish(STARTED)
        assert entered.wait(240)
        for _ in range(100):
            facts.publish(STARTED)
        release.set()


def test_a_forked_worker_does_not_speak_for_its_agent(tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import os
        import holdfast.events as e
        from holdfast.events.platform import RunContext
        from holdfast.events.recording import EventFeed
        from holdfast.facts import Fact, facts
        with EventFeed("jsonl:{tmp_path}/f", RunContext("job", "h", 1)) as feed:
            facts.publish(Fact("before", "s"))
            feed._outbox.flush()
            pid = os.fork()
            facts.publish(Fact("after" if pid else "in_the_child", "s"))
            feed._outbox.flush()
            e.flush_all()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        """
    )

    subprocess.run([sys.executable, "-c", code], check=True)

    names = [Event.deserialize(line).name for line in (tmp_path / "f").read_text().splitlines()]
    assert names == ["holdfast.before", "holdfast.after"]
