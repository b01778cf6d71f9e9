"""The bench on a GPU: what the logs of a job mean, and that a measurement goes on where it stopped."""

from pathlib import Path

import pytest
from bench.gpu import Kept, measure
from bench.nccl import cost_cases, fault_cases, judge, restart_cases, transfer_cases

from bench import gpu

#: A worker that is killed in step 2, its two peers, and the one in its place; step 1 is noted by the peers afterwards.
VICTIM = [(0.0, -1, "started"), (1.0, 2, "0/3"), (2.0, 2, "1/3"), (2.1, 2, "fault-0")]
FIRST = [(0.0, -1, "started"), (1.0, 0, "0/3"), (2.2, 0, "1/3"), (2.5, 0, "2/2"), (3.0, 0, "3/3")]
SECOND = [(0.0, -1, "started"), (1.0, 1, "0/3"), (2.2, 1, "1/3"), (2.6, 1, "2/2"), (3.1, 1, "3/3")]
NEWCOMER = [(2.3, -1, "started"), (2.4, 2, "sync-begin"), (2.9, 2, "sync-end"), (3.0, 2, "3/3")]
LOGS = {"1": VICTIM, "2": FIRST, "3": SECOND, "4": NEWCOMER}
#: The newcomer is killed in turn, and the first of the two that are left before its next step.
TWICE = {
    "1": VICTIM,
    "2": [*FIRST, (3.5, 0, "fault-1")],
    "3": [*SECOND, (4.0, 1, "4/1"), (4.5, 0, "5/3")],
    "4": [*NEWCOMER, (3.3, 2, "fault-1")],
    "5": [(3.9, -1, "started"), (4.5, 1, "5/3")],
}


def without_step(step, log):
    return [(at, rank, what) for at, rank, what in log if not what.startswith(f"{step}/")]


def test_a_step_that_one_worker_took_over_from_another_is_not_lost():
    assert judge({**LOGS, "3": without_step(2, SECOND)})[0]["good"]


def test_a_stall_is_from_the_fault_to_the_next_step_of_the_slowest_survivor():
    assert judge(LOGS) == [{"good": True, "stall_s": pytest.approx(0.5), "full_s": pytest.approx(1.0)}]


def test_the_trials_of_one_job_are_told_apart():
    [first, second] = judge(TWICE)

    assert first == {"good": True, "stall_s": pytest.approx(0.5), "full_s": pytest.approx(1.0)}
    assert second == {"good": True, "stall_s": pytest.approx(0.7), "full_s": pytest.approx(1.0)}


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        ({**LOGS, "2": without_step(2, FIRST), "3": without_step(2, SECOND)}, "step 3 came after 1"),
        ({**LOGS, "3": [*SECOND, (4.0, 1, "3/3")]}, "step 3 came after 3"),
        (
            {**LOGS, "3": [*without_step(2, SECOND)[:3], (2.5, 1, "2/1"), *without_step(2, SECOND)[3:]]},
            "step 2 was done by 2 workers, and again by 1",
        ),
        ({"2": FIRST, "3": SECOND}, "no fault was met"),
        ({**LOGS, "3": SECOND[:4]}, "a worker that met no fault ended after step 2 of 3"),
        ({"1": VICTIM}, "no other worker did a step afterwards"),
    ],
    ids=["a step lost", "a step twice by one", "a step twice by two", "no fault", "a survivor lost", "all lost"],
)
def test_a_job_that_lost_something_is_not_good(spoiled, why):
    assert judge(spoiled) == [{"good": False, "why": why}]


def test_what_goes_wrong_belongs_to_the_fault_before_it():
    assert [sample["good"] for sample in judge({**TWICE, "3": TWICE["3"][:-1]})] == [True, False]
    assert judge(TWICE, "the job ended with 1")[1] == {"good": False, "why": "the job ended with 1"}


def test_samples_become_rows_and_bad_ones_misses():
    good = {"good": True, "stall_s": 0.1, "full_s": 0.5}
    [stall, full] = fault_cases("step:standby", [good, good])

    assert (stall.ok, full.ok, full.ours) == (True, True, 0.5)
    assert [case.ok for case in fault_cases("step", [good, {"good": False}])] == [False]
    assert [case.ok for case in cost_cases("cost:20:reduce", [{"good": True, "bare": 20.0, "ours": 20.3}])] == [False]
    [taken] = transfer_cases("state:1", [{"good": True, "seconds": 2.0, "bus_s": 1.0, "gib": 1.0}])
    assert (taken.ours, taken.theirs, taken.ratio) == (2.0, 1.0, 0.5)
    assert restart_cases("plain:torchrun", [{"good": False, "first_s": 3.0}])[0].ok is None
    assert restart_cases("plain:warm", [{"good": False, "first_s": 3.0}])[0].ok is False


def test_a_measurement_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = []

    def trial(case, trials):
        done.append((case, trials))
        if case == "b":
            raise RuntimeError("boom")
        return [{"good": True, "stall_s": 0.1, "full_s": None}] * min(trials, 2)

    monkeypatch.setattr(gpu, "all_cases", lambda: {name: (trial, lambda case, samples: []) for name in "ab"})
    path = tmp_path / "gpu.json"
    measure(["a", "b"], 3, float("-inf"), Kept(path))
    assert done == []

    for _ in range(2):
        measure(["a", "b"], 3, float("inf"), Kept(path))

    assert done == [("a", 3), ("a", 1), ("b", 3), ("b", 2), ("b", 1)]
    assert (Kept(path).count("a"), Kept(path).count("b")) == (3, 3)
