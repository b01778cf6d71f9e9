"""Lightning's training outlives its workers, and ends where an undisturbed run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="needs lightning: make test-frameworks")

from tests.integrations.conftest import Ended, Launch

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the undisturbed run keeps its checkpoints."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(launch: Launch, folder: Path) -> Ended:
    """An undisturbed run: three epochs of 46 samples in steps of 8, the last one of an epoch is short."""
    return launch("fit.py", out=str(folder))


def values(ended: Ended, name: str) -> list[Any]:
    return [each[name] for _, each in sorted(ended[0].items())]


def test_workers_are_equal_at_the_end(whole: Ended) -> None:
    assert len(set(values(whole, "bits"))) == 1
    assert values(whole, "steps") == [18, 18]
    assert values(whole, "epoch") == [3, 3]
    assert values(whole, "seen") == [list(range(1, 19))] * 2
    assert len(whole[0][0]["saved"]) == 4


@pytest.mark.parametrize(
    "kill", [["before", 8, 1], ["after", 9, 0], ["validate", 6, 1], ["before", 12, 1]], ids=lambda kill: kill[0]
)
def test_with_all_workers_there_the_bits_are_those_of_the_undisturbed_run(
    launch: Launch, whole: Ended, kill: list[Any]
) -> None:
    killed = launch("fit.py", min_workers=2, kill=kill)

    assert "killed by SIGKILL" in killed[1]
    assert set(values(killed, "bits")) == set(values(whole, "bits"))
    for name in ("steps", "epoch", "right", "rate", "saved"):
        assert values(killed, name) == values(whole, name)


def test_the_others_go_on_without_the_dead_worker(launch: Launch, whole: Ended) -> None:
    killed = launch("fit.py", kill=["before", 4, 1])

    assert killed[0][0]["steps"] == 18
    assert killed[0][0]["rate"] == whole[0][0]["rate"]
    assert killed[0][0]["seen"] == list(range(1, 19))


def test_a_run_continues_from_lightnings_own_checkpoint(launch: Launch, whole: Ended, folder: Path) -> None:
    resumed = launch("fit.py", resume=str(folder / "model" / "epoch=1-step=8.ckpt"))

    assert set(values(resumed, "bits")) == set(values(whole, "bits"))
    assert values(resumed, "steps") == [18, 18]
