"""The agent's facts become metrics of the group `torchelastic`."""

from __future__ import annotations

from holdfast import metrics
from holdfast.facts import Fact, FactBook
from holdfast.metrics.platform import PlatformMetrics
from tests.metrics.conftest import Remembering


def test_facts_are_told_from_start_to_stop() -> None:
    handler, book = Remembering(), FactBook()
    metrics.configure(handler, group="torchelastic")
    platform = PlatformMetrics("trainer", book)
    stopped = Fact("workers_stopped", "stopped", {"duration_ms": 5})

    book.publish(stopped)
    platform.start()
    platform.start()
    book.publish(stopped)
    platform.stop()
    platform.stop()
    book.publish(stopped)

    assert handler.values == [("torchelastic", "workers.stop_ms", 5)]


def test_counts_grow_over_the_agents_life_each_kind_by_itself() -> None:
    handler = Remembering()
    metrics.configure(handler)
    platform = PlatformMetrics()
    for kind in ("crash", "oom", "crash"):
        platform.take(Fact("worker_failed", "failed", {"kind": kind}))

    assert [(name, value) for _, name, value in handler.values] == [
        ("failures.crash", 1),
        ("failures.oom", 1),
        ("failures.crash", 2),
    ]


def test_the_role_of_the_agent_names_what_a_fact_does_not() -> None:
    handler = Remembering()
    metrics.configure(handler)
    PlatformMetrics("trainer").take(Fact("workers_started", "started", {"restarts_left": 3}))

    assert ("torchelastic", "workers.trainer.remaining_restarts", 3) in handler.values
