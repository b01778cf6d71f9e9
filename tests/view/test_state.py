"""Where a run stands, from its journals."""

from __future__ import annotations

from typing import Any

from holdfast.events.entry import Entry
from holdfast.events.story import Told
from holdfast.view.state import RunReader


def told(when: float, kind: str, level: str = "info", host: str | None = "a", **data: Any) -> Told:
    entry = Entry(
        time=when,
        kind=kind,
        sentence=kind,
        level=level,
        data=data,
        run="r",
        host=host,
        node=host,
        pid=1 if host else None,
    )
    return Told(entry, b"", None)


def read(*lines: Told) -> RunReader:
    reader = RunReader()
    for line in lines:
        reader.take(line)
    return reader


BEGUN = told(0, "agent_started", workers=2)
STARTED = told(
    2,
    "workers_started",
    round=1,
    ranks=[0, 1],
    pids=[7, 8],
    world_size=2,
    group_world_size=1,
    restarts_left=3,
    beats="/b",
)


def test_a_live_run_has_workers_and_restarts_left() -> None:
    state = read(BEGUN, STARTED).state(5, over=False)

    assert (state.outcome, state.round, state.world_size, state.restarts_left) == ("running", 1, 2, 3)
    assert {rank: (worker.pid, worker.local_rank, worker.beats) for rank, worker in state.workers.items()} == {
        0: (7, 0, "/b"),
        1: (8, 1, "/b"),
    }


def test_a_replaced_worker_has_its_new_process_and_costs_a_restart() -> None:
    state = read(BEGUN, STARTED, told(3, "workers_replaced", ranks=[1], local_ranks=[1], pids=[9], reason="x")).state(
        5, over=False
    )

    assert (state.workers[1].pid, state.restarts_used, state.restarts_left) == (9, 1, 2)


def test_a_replaced_worker_is_known_by_its_place_on_its_node() -> None:
    """Others were lost meanwhile, so its node has other ranks than when its workers were started."""
    replaced = told(3, "workers_replaced", ranks=[0], local_ranks=[1], pids=[9], reason="x")
    state = read(BEGUN, STARTED, replaced).state(5, over=False)

    assert {rank: worker.pid for rank, worker in state.workers.items()} == {0: 7, 1: 9}


def test_what_a_run_without_workers_waits_for_is_told() -> None:
    state = read(BEGUN, told(1, "waiting")).state(5, over=False)

    assert (state.waiting, state.workers) == ("waiting", {})


def test_a_run_is_over_when_every_agent_has_said_how_it_ended() -> None:
    state = read(BEGUN, STARTED, told(9, "run_ended", outcome="failed", reason="boom")).state(50, over=False)

    assert (state.outcome, state.reason, state.end, state.workers) == ("failed", "boom", 9, {})


def test_an_agent_that_died_without_a_word_leaves_a_run_that_is_gone() -> None:
    assert read(BEGUN, STARTED).state(50, over=True).outcome == "gone"
    assert (
        read(BEGUN, STARTED, told(3, "run_closed", host=None, failed=False)).state(50, over=True).outcome == "succeeded"
    )


def test_notable_events_are_those_that_people_want_and_every_warning() -> None:
    state = read(BEGUN, STARTED, told(3, "round_broken"), told(4, "anything", level="warning")).state(5, over=False)

    assert [line.entry.kind for line in state.notable] == ["round_broken", "anything"]


def test_the_workers_of_a_node_that_was_lost_are_gone_and_its_silence_means_nothing() -> None:
    other = [
        told(0, "agent_started", host="b", workers=1),
        told(2, "workers_started", host="b", round=1, ranks=[2], pids=[9], world_size=3),
    ]
    reader = read(BEGUN, STARTED, *other, told(3, "node_gone", host=None, node="b"))

    assert sorted(reader.state(5, over=False).workers) == [0, 1]
    reader.take(told(6, "run_ended", outcome="succeeded"))
    assert reader.state(7, over=False).outcome == "succeeded"
