"""Training with torch through faults: real processes, and workers that die, stop or come in the middle of a step."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch.distributed", reason="needs torch")

from tests.torch.conftest import Coordinator, StartWorkers
from tests.train.conftest import Worker

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]

EPOCHS = 5
STEPS = 20
Undisturbed = Callable[..., dict[str, Any]]
MOMENTS = ["forward", "reduce", "optimizer", "after"]


def finish(worker: Worker) -> dict[str, Any]:
    """Wait for a worker that ends well, and return what it has in the end."""
    assert worker.end() == 0, "".join(worker.errors)
    done = worker.events[-1]
    assert done["event"] == "done"
    assert done["seen"] == [EPOCHS] * len(done["seen"]), "every sample is used once in every epoch"
    return done


def agreed(workers: list[Worker]) -> dict[str, Any]:
    """All workers end with the same bits."""
    ends = [finish(worker) for worker in workers]
    assert len({end["digest"] for end in ends}) == 1
    return ends[0]


def counted(worker: Worker) -> list[int]:
    return [event["number"] for event in worker.events if event["event"] == "step"]


@pytest.fixture(scope="module")
def ends() -> dict[str, dict[str, Any]]:
    """How workers that nothing disturbed have ended, by their options: what they train does not depend on the test."""
    return {}


@pytest.fixture
def undisturbed(start_workers: StartWorkers, ends: dict[str, dict[str, Any]]) -> Undisturbed:
    """How so many workers end that nothing disturbs."""

    def end(size: int, **options: Any) -> dict[str, Any]:
        key = json.dumps([size, options])
        if key not in ends:
            ends[key] = agreed(start_workers(*[{}] * size, size=size, run="undisturbed", **options))
        return ends[key]

    return end


@pytest.mark.parametrize(
    ("mode", "size", "moment"),
    [*(("reduce", 2, moment) for moment in MOMENTS), ("reduce", 3, "reduce"), ("ddp", 3, "reduce")],
)
def test_a_worker_that_is_killed_is_replaced_and_not_a_bit_is_different(
    start_workers: StartWorkers, undisturbed: Undisturbed, mode: str, size: int, moment: str
) -> None:
    """The survivors wait for a replacement, so that every step is done at full size; what three add up has an order."""
    expected = undisturbed(size, mode=mode)
    common = {"size": size, "mode": mode, "settings": {"min_nodes": size}, "cold": moment == "after"}
    *survivors, victim = start_workers(*[{}] * (size - 1), {"fates": {f"7 {moment}": "kill"}}, **common)
    victim.wait_for("fate")
    (replacement,) = start_workers({"model_seed": 99}, **common)

    end = agreed([*survivors, replacement])

    assert victim.end() == -signal.SIGKILL
    assert end["digest"] == expected["digest"]
    for survivor in survivors:
        assert counted(survivor) == list(range(STEPS)), "no step is lost and none is counted twice"
        assert all(event["world"] == size for event in survivor.events if event["event"] == "step")


@pytest.mark.parametrize("mode", ["reduce", "ddp"])
def test_a_worker_and_the_coordinator_that_die_at_one_moment_cost_no_step(
    start_workers: StartWorkers, coordinator: Coordinator, mode: str
) -> None:
    """No news can explain to the survivors why their collective failed; they keep their state and wait."""
    server = coordinator.process
    common = {"size": 3, "mode": mode}
    *survivors, victim = start_workers({}, {}, {"fates": {"7 reduce": "kill both"}, "server": server.pid}, **common)
    assert victim.end() == -signal.SIGKILL
    server.wait(240)
    for survivor in survivors:
        survivor.wait_for("asks", after=-1)
        survivor.wait_for("asks")
    assert server.stdout is not None
    server.stdout.close()
    coordinator.start()

    agreed(survivors)

    for survivor in survivors:
        assert counted(survivor) == list(range(STEPS)), "no step is lost and none is counted twice"


def test_one_of_three_is_killed_and_the_others_go_on_at_once(
    start_workers: StartWorkers, undisturbed: Undisturbed
) -> None:
    expected = undisturbed(3, mode="reduce")
    *survivors, _ = start_workers({}, {}, {"fates": {"7 reduce": "kill"}}, size=3)

    end = agreed(survivors)

    assert end["weights"] == pytest.approx(expected["weights"], rel=0.05, abs=0.02)
    for worker in survivors:
        assert counted(worker) == list(range(STEPS))
        assert {event["world"] for event in worker.events if event["event"] == "step" and event["number"] > 7} == {2}


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_sums_by_micro_batch_give_the_same_bits_when_the_number_of_workers_changes(
    start_workers: StartWorkers, undisturbed: Undisturbed, backend: str
) -> None:
    options = {"mode": "total", "micro_batch": 3, "backend": backend}
    expected = undisturbed(1, **options)
    first, *_ = start_workers(
        {"fates": {"9 forward": "await"}},
        {"fates": {"5 reduce": "kill"}},
        {"fates": {"3 optimizer": "kill"}},
        size=3,
        **options,
    )
    first.wait_for("fate", fate="await")
    (newcomer,) = start_workers({}, size=3, **options)

    end = agreed([first, newcomer])

    assert end["digest"] == expected["digest"]
    assert counted(first) == list(range(STEPS))
    assert {event["world"] for event in first.events if event["event"] == "step"} == {1, 2, 3}


def test_survivors_of_a_frozen_worker_leave_a_blocked_collective_when_they_are_told(
    start_workers: StartWorkers,
) -> None:
    """Nothing but the news frees them: the frozen one keeps its connections, and no timeout is near."""
    settings = {"lease": 2}
    *others, frozen = start_workers({}, {}, {"fates": {"7 reduce": "stop"}}, size=3, settings=settings)
    frozen.wait_for("fate")

    for worker in others:
        worker.wait_for("step", number=7, world=2)
    assert frozen.process.poll() is None
    frozen.kill()

    agreed(others)


def test_a_worker_that_thaws_comes_back_and_takes_the_state_of_the_others(start_workers: StartWorkers) -> None:
    settings = {"lease": 2}
    others = start_workers({"fates": {"8 forward": "await"}}, size=2, settings=settings)
    (frozen,) = start_workers({"fates": {"3 reduce": "stop"}}, size=2, settings=settings)
    frozen.wait_for("fate")
    others[0].wait_for("fate", fate="await")
    frozen.kill(signal.SIGCONT)

    agreed([*others, frozen])

    assert others[0].events[-2]["world"] == 2


def test_a_newcomer_is_let_in_between_two_steps(start_workers: StartWorkers) -> None:
    settings = {"last_call_timeout": 0.1, "quiet": 0.1}
    (first,) = start_workers({"fates": {"7 forward": "await"}}, size=2, mode="ddp", settings=settings)
    first.wait_for("fate", fate="await")
    (newcomer,) = start_workers({"model_seed": 99}, size=2, mode="ddp", settings=settings)

    agreed([first, newcomer])

    came = counted(newcomer)
    assert counted(first) == list(range(STEPS))
    assert came[0] >= 8, "the step that was under way was finished without it"
    assert came == list(range(came[0], STEPS))


@pytest.mark.parametrize("rollback", ["auto", "copy"])
def test_workers_that_talk_after_the_optimizer_can_still_undo_its_step(
    start_workers: StartWorkers, undisturbed: Undisturbed, rollback: str
) -> None:
    """The survivors fail after they have changed their parameters, and no worker is left that has not."""
    options = {"talk": True, "rollback": rollback, "settings": {"min_nodes": 3}}
    expected = undisturbed(3, **options)
    *survivors, victim = start_workers({}, {}, {"fates": {"7 after": "kill"}}, size=3, **options)
    victim.wait_for("fate")
    (replacement,) = start_workers({}, size=3, **options)

    assert agreed([*survivors, replacement])["digest"] == expected["digest"]


def test_an_error_that_nothing_explains_is_tried_again_and_costs_no_step(start_workers: StartWorkers) -> None:
    workers = start_workers({"fates": {"7 forward": "raise"}}, {}, size=2)

    agreed(workers)

    for worker in workers:
        assert counted(worker) == list(range(STEPS))


def test_a_worker_whose_own_mistake_it_is_ends_and_the_others_go_on(start_workers: StartWorkers) -> None:
    mistaken, other = start_workers({"fates": {"7 forward": "raise always"}}, {}, size=2)

    assert mistaken.end() == 1
    assert "a mistake of this worker alone" in "".join(mistaken.errors)
    agreed([other])
    assert counted(other) == list(range(STEPS))


def test_data_loaders_with_workers_of_their_own_lose_and_repeat_nothing(start_workers: StartWorkers) -> None:
    """What they have loaded ahead for a round that is over is thrown away."""
    *survivors, victim = start_workers(
        {}, {}, {"fates": {"7 reduce": "kill"}}, size=3, loaders=1, settings={"lease": 2}
    )
    victim.wait_for("fate")

    agreed(survivors)


def test_batch_normalisation_is_the_same_on_all_workers(start_workers: StartWorkers) -> None:
    agreed(start_workers({}, {}, size=2, norm=True, batch=25))
