"""A loop for Accelerate outlives its workers, and ends where an undisturbed run ends."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("accelerate", reason="needs accelerate: make test-frameworks")

from tests.integrations.conftest import Ended, Launch

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def whole(launch: Launch) -> Ended:
    """An undisturbed run: three epochs of 46 samples in steps of 8, the last one of an epoch is short."""
    return launch("loop.py")


def values(ended: Ended, name: str) -> list[Any]:
    return [each[name] for _, each in sorted(ended[0].items())]


def test_workers_are_equal_at_the_end(whole: Ended) -> None:
    assert len(set(values(whole, "bits"))) == 1
    assert values(whole, "steps") == [18, 18]
    assert values(whole, "rate") == [pytest.approx(1e-3)] * 2


@pytest.mark.parametrize("kill", [["before", 8, 1], ["after", 9, 0], ["before", 12, 1]], ids=str)
def test_with_all_workers_there_the_bits_are_those_of_the_undisturbed_run(
    launch: Launch, whole: Ended, kill: list[Any]
) -> None:
    killed = launch("loop.py", min_workers=2, kill=kill)

    assert "killed by SIGKILL" in killed[1]
    assert set(values(killed, "bits")) == set(values(whole, "bits"))
    for name in ("steps", "right", "rate"):
        assert values(killed, name) == values(whole, name)


def test_the_others_go_on_without_the_dead_worker(launch: Launch, whole: Ended) -> None:
    killed = launch("loop.py", kill=["before", 4, 1])

    assert killed[0][0]["steps"] == 18
    assert killed[0][0]["rate"] == whole[0][0]["rate"]
