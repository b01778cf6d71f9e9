"""The scenarios of the first torchelastic, with real processes: 11 to 30 are summed, whichever worker dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.train.conftest import Worker

pytest.importorskip("numpy")

# Four processes that import torch at once take long on a busy machine.
pytestmark = pytest.mark.timeout(240)

TOTAL = 410
BACKENDS = [
    pytest.param("ring"),
    pytest.param("gloo", marks=[pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="no torch")]),
]

StartWorkers = Callable[..., list[Worker]]


@pytest.fixture(params=BACKENDS)
def start_workers(request: pytest.FixtureRequest, start: Callable[..., Worker], free_port: int) -> StartWorkers:
    """Start so many workers of one run, each with options of its own; `cold` ones import torch themselves."""

    def make(*each: dict[str, Any], least: int = 1, most: int = 4, cold: bool = False, **common: Any) -> list[Worker]:
        extra = common.pop("url_extra", "")
        url = f"holdfast://127.0.0.1:{free_port}/sum?min_workers={least}&max_workers={most}{extra}"
        options = {"url": url, "most": most, "backend": request.param, **common}
        cold = cold or request.param == "ring"  # which finds no torch
        return [start("summing.py", cold=cold, **{**options, **own}) for own in each]

    return make


def done(worker: Worker) -> int:
    """The total with which a worker ended well."""
    assert worker.end() == 0, "".join(worker.errors)
    assert worker.events[-1]["event"] == "done"
    total: int = worker.events[-1]["total"]
    return total


def test_four_workers_without_any_trouble(start_workers: StartWorkers) -> None:
    workers = start_workers({}, {}, {}, {})

    assert [done(worker) for worker in workers] == [TOTAL] * 4
    assert all(sum(event["event"] == "step" for event in worker.events) == 5 for worker in workers)


def test_a_generator_of_steps_does_as_well(start_workers: StartWorkers) -> None:
    workers = start_workers({}, {}, most=2, generator=True, cold=True)

    assert [done(worker) for worker in workers] == [TOTAL] * 2


def test_fewer_than_the_most_are_enough_to_begin(start_workers: StartWorkers) -> None:
    """They wait for the others as long as the last call lasts."""
    workers = start_workers({}, {}, least=2, most=4, url_extra="&last_call_timeout=0.2")

    assert [done(worker) for worker in workers] == [TOTAL] * 2
    assert all(event["world"] == 2 for worker in workers for event in worker.events if event["event"] == "step")


def test_a_failure_that_can_be_retried_costs_one_step(start_workers: StartWorkers) -> None:
    workers = start_workers({"at": {4: "retry"}}, {"at": {4: "retry"}}, {}, {})

    assert [done(worker) for worker in workers] == [TOTAL] * 4
    for worker in workers:
        indices = [event["index"] for event in worker.events if event["event"] == "step"]
        assert indices == sorted(set(indices)), "no step was counted twice"


def test_who_fails_for_good_ends_and_the_others_go_on(start_workers: StartWorkers) -> None:
    workers = start_workers({"at": {4: "bug"}}, {"at": {8: "hopeless"}}, {}, {})

    assert workers[0].end() != 0
    assert workers[1].end() != 0
    assert [done(worker) for worker in workers[2:]] == [TOTAL] * 2


def test_the_same_failure_forever_ends_the_loop(start_workers: StartWorkers) -> None:
    (worker,) = start_workers({"at": {4: "retry"}, "always": True}, most=1)

    assert worker.end() != 0
    assert "Exceeded max number of recoverable failures: 100" in "".join(worker.errors)


def test_a_sync_that_raises_is_tried_again(start_workers: StartWorkers) -> None:
    workers = start_workers({"fail_sync": 1}, {}, most=2)

    assert [done(worker) for worker in workers] == [TOTAL] * 2


def test_a_sync_that_raises_costs_no_step_where_workers_regroup_after_every_one(start_workers: StartWorkers) -> None:
    """A worker that is done with its step leaves no round while another is still in it, which would have to redo it."""
    trouble = {"fail_sync": 1}
    workers = start_workers(trouble, {**trouble, "linger": 0.2}, {}, {}, regroup=True, least=4)

    assert [done(worker) for worker in workers] == [TOTAL] * 4
    assert [sum(event["event"] == "step" for event in worker.events) for worker in workers] == [5] * 4
    ended = [times(worker, "ended") for worker in workers]
    left = [
        [next(at for at in times(worker, "left") if at > end) for end in times(worker, "ended")] for worker in workers
    ]
    for step in range(5):
        assert max(each[step] for each in ended) <= min(each[step] for each in left)


def times(worker: Worker, event: str) -> list[int]:
    """When a worker told of an event, by the clock that all processes of this machine share."""
    return [each["at"] for each in worker.events if each["event"] == event]


def test_two_of_four_are_killed(start_workers: StartWorkers) -> None:
    workers = start_workers({"at": {4: "kill"}}, {"at": {8: "kill"}}, {}, {})

    assert [worker.end() for worker in workers[:2]] == [-9, -9]
    assert [done(worker) for worker in workers[2:]] == [TOTAL] * 2


def test_children_that_outlive_the_killed_do_not_hide_their_death(start_workers: StartWorkers) -> None:
    """No lease would end in time: only the end of a connection tells, and no child holds one open."""
    workers = start_workers({"at": {4: "orphan"}}, {"at": {4: "orphan"}}, {}, {}, url_extra="&lease=3600")
    children = [worker.wait_for("forked")["pid"] for worker in workers[:2]]
    try:
        assert [done(worker) for worker in workers[2:]] == [TOTAL] * 2
        assert [worker.end() for worker in workers[:2]] == [-9, -9]
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def test_two_of_four_are_stuck_and_the_rest_is_saved_by_the_timeout(start_workers: StartWorkers) -> None:
    workers = start_workers({"at": {4: "loop"}}, {"at": {4: "loop"}}, {}, {}, timeout_ms=3000)

    assert [done(worker) for worker in workers[2:]] == [TOTAL] * 2
    assert [worker.process.poll() for worker in workers[:2]] == [None, None]


def test_without_rollback_a_failed_step_is_not_undone(start_workers: StartWorkers) -> None:
    """The failed step had moved the index to the end, so the training ends short of the total."""
    (worker,) = start_workers({"at": {4: "retry"}, "no_rollback": True}, most=1)

    assert done(worker) < TOTAL


def test_newcomers_are_let_in_between_two_steps(start_workers: StartWorkers) -> None:
    # With fewer than two at first, one may be done before the other has started, and its coordinator is gone with it.
    first = start_workers({"at": {4: "await:4"}}, {}, least=2, url_extra="&last_call_timeout=0.2")
    first[0].wait_for("fate", fate="await:4")
    newcomers = start_workers({}, {}, least=2)

    workers = [*first, *newcomers]
    assert [done(worker) for worker in workers] == [TOTAL] * 4
    assert any(event.get("world") == 4 for event in first[1].events if event["event"] == "step")


def test_the_killed_come_back_and_take_the_state_of_the_others(start_workers: StartWorkers) -> None:
    first = start_workers({"at": {4: "kill"}}, {"at": {8: "await:2"}}, most=2, cold=True)
    first[0].end()
    first[1].wait_for("fate", fate="await:2")
    (again,) = start_workers({}, most=2, cold=True)

    assert done(first[1]) == done(again) == TOTAL
    synced = next(event for event in again.events if event["event"] == "synced")
    assert synced["index"] > 0


def test_a_straggler_is_named(start_workers: StartWorkers) -> None:
    workers = start_workers({"rate": 1.0}, {"rate": 0.5}, most=2, monitor_every=1)

    assert [done(worker) for worker in workers] == [TOTAL] * 2
    assert "slower than the others: rank" in "".join(workers[0].errors + workers[1].errors)
    assert [(worker.events[-1]["relative"], worker.events[-1]["slow"]) for worker in workers] == [
        (1.0, False),
        (0.5, True),
    ]


def test_all_are_killed_and_go_on_from_the_last_checkpoint(start_workers: StartWorkers, tmp_path: Path) -> None:
    kept = str(tmp_path / "checkpoints")
    first = start_workers({"at": {8: "kill"}}, {"at": {8: "kill"}}, most=2, checkpoints=kept)
    assert [worker.end() for worker in first] == [-9, -9]

    again = start_workers({}, {}, most=2, checkpoints=kept)

    assert [done(worker) for worker in again] == [TOTAL] * 2
    for worker in again:
        synced = next(event for event in worker.events if event["event"] == "synced")
        assert (synced["index"], synced["total"]) == (8, sum(range(11, 19)))


def test_workers_regroup_after_every_step_if_need_be(start_workers: StartWorkers) -> None:
    """Each in its turn fails once, at another step."""
    fates = [dict.fromkeys(range(turn, 20, 8), "retry") for turn in range(0, 8, 2)]
    workers = start_workers(*({"at": fate} for fate in fates))

    assert [done(worker) for worker in workers] == [TOTAL] * 4
