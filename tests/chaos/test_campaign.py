"""A few runs of the campaign; `make campaign` has two hundred."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.chaos.campaign import check, run_one, undisturbed
from holdfast.chaos.schedule import Fault, Kind, Moment, Schedule

pytest.importorskip("numpy")

STEPS = 24


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return undisturbed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "workers", "faults"),
    [
        (1, 3, [(Kind.SIGKILL, Moment.REDUCE, 5, 1), (Kind.SIGSTOP, Moment.OPTIMIZER, 12, 0)]),
        (1, 2, [(Kind.EXIT, Moment.SYNC, 0, 1), (Kind.COORDINATOR_RESTART, Moment.FORWARD, 9, 0)]),
        (2, 1, [(Kind.AGENT_KILL, Moment.FORWARD, 6, 1), (Kind.EXCEPTION, Moment.CHECKPOINT, 14, 0)]),
    ],
    ids=["killed and stopped", "exit in the sync and a restarted coordinator", "a killed agent"],
)
def test_a_run_with_faults_ends_as_if_nothing_had_happened(
    expected: dict[str, Any], agents: int, workers: int, faults: list[tuple[Kind, Moment, int, int]]
) -> None:
    schedule = Schedule(-1, agents, workers, STEPS, tuple(Fault(n, *fault) for n, fault in enumerate(faults)))

    verdict = run_one(schedule, expected)

    assert verdict.complaints == [], verdict.folder
    assert verdict.struck == len(faults)


def result(folder: Path, name: str, **changes: Any) -> None:
    whole = {"weights": "aa", "momentum": "bb", "used": [2, 2, 2], "steps": 3, "world_size": 1, "rank": 0}
    (folder / f"result-{name}.json").write_text(json.dumps({**whole, **changes}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"weights": "ab"}, "another model"),
        ({"used": [2, 3, 2]}, "not used equally often"),
        ({"used": [3, 3, 3]}, "every sample was used 3 times"),
    ],
)
def test_the_campaign_sees_what_is_wrong(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    good = {"weights": "aa", "momentum": "bb", "used": [2, 2, 2]}
    result(tmp_path, "1", **changes)

    assert any(complaint in each for each in check(tmp_path, good))


def test_workers_that_differ_or_leave_nothing_are_seen(tmp_path: Path) -> None:
    assert check(tmp_path, None) == ["no worker has left a result"]
    result(tmp_path, "1")
    assert check(tmp_path, None) == []
    result(tmp_path, "2", weights="ff", rank=1)
    assert any("different models" in each for each in check(tmp_path, None))
