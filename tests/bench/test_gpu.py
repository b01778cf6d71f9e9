"""The bench on a GPU: what the logs of a job mean, and that a measurement goes on where it stopped."""

from pathlib import Path

import pytest
from bench.gpu import Kept, measure
from bench.nccl import cost_cases, fault_cases, judge, restart_cases, transfer_cases

from bench import gpu

#: A worker that is killed in step 2, its two peers, and the one in its place; step 1 is noted by the peers afterwards.
VICTIM = [(0.0, -1, "started"), (1.0, 2, "0/3"), (2.0, 2, "1/3"), (2.1, 2, "killed")]
FIRST = [(0.0, -1, "started"), (1.0, 0, "0/3"), (2.2, 0, "1/3"), (2.5, 0, "2/2"), (3.0, 0, "3/3")]
SECOND = [(0.0, -1, "started"), (1.0, 1, "0/3"), (2.2, 1, "1/3"), (2.6, 1, "2/2"), (3.1, 1, "3/3")]
NEWCOMER = [(2.3, -1, "started"), (2.4, 2, "sync-begin"), (2.9, 2, "sync-end"), (3.0, 2, "3/3")]
LOGS = {"1": VICTIM, "2": FIRST, "3": SECOND, "4": NEWCOMER}


def test_a_stall_is_from_the_blow_to_the_next_step_of_the_slowest_survivor():
    sample = judge(LOGS, steps=4, survivors=2)

    assert sample == {"good": True, "stall_s": pytest.approx(0.5), "full_s": pytest.approx(1.0)}


@pytest.mark.parametrize(
    "spoiled",
    [
        {**LOGS, "3": [*SECOND[:3], *SECOND[4:]]},
        {**LOGS, "3": [*SECOND, (4.0, 1, "3/3")]},
        {"2": FIRST, "3": SECOND},
        {"1": VICTIM, "2": FIRST},
    ],
    ids=["a step lost", "a step twice", "nothing struck", "a survivor lost"],
)
def test_a_job_that_lost_something_is_not_good(spoiled):
    assert not judge(spoiled, steps=4, survivors=2)["good"]


def test_samples_become_rows_and_bad_ones_misses():
    good = {"good": True, "stall_s": 0.1, "full_s": 0.5}
    [stall, full] = fault_cases("step:standby", [good, good])

    assert (stall.ok, full.ok, full.ours) == (True, True, 0.5)
    assert [case.ok for case in fault_cases("step", [good, {"good": False}])] == [False]
    assert [case.ok for case in cost_cases("cost:20", [{"good": True, "bare": 20.0, "ours": 20.3}])] == [False]
    assert [case.ours for case in transfer_cases("state:1", [{"good": True, "seconds": 2.0, "gib": 1.0}])] == [2.0]
    assert restart_cases("plain:torchrun", [{"good": False, "first_s": 3.0}])[0].ok is None
    assert restart_cases("plain:warm", [{"good": False, "first_s": 3.0}])[0].ok is False


def test_a_measurement_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = []

    def trial(case):
        done.append(case)
        if case == "b":
            raise RuntimeError("boom")
        return {"good": True, "stall_s": 0.1, "full_s": None}

    monkeypatch.setattr(gpu, "all_cases", lambda: {name: (trial, lambda case, samples: []) for name in "ab"})
    path = tmp_path / "gpu.json"
    measure(["a", "b"], 2, float("-inf"), Kept(path))
    assert done == []

    for _ in range(2):
        measure(["a", "b"], 2, float("inf"), Kept(path))

    assert done == ["a", "a", "b", "b"]
    assert (Kept(path).count("a"), Kept(path).count("b")) == (2, 2)
