"""Hugging Face's Trainer outlives its workers, and ends where an undisturbed run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers: make test-frameworks")
pytest.importorskip("accelerate", reason="needs accelerate: make test-frameworks")

from tests.integrations.conftest import Ended, Launch

pytestmark = [pytest.mark.slow, pytest.mark.torch]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the undisturbed run keeps its checkpoints."""
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(launch: Launch, folder: Path) -> Ended:
    """An undisturbed run: two epochs of 45 samples in steps of 8, the last one of an epoch is short."""
    return launch("hf_trainer.py", out=str(folder))


def values(ended: Ended, name: str) -> list[Any]:
    return [each[name] for _, each in sorted(ended[0].items())]


def test_workers_are_equal_at_the_end(whole: Ended) -> None:
    assert values(whole, "steps") == [12, 12]
    assert values(whole, "is_zero") == [True, False]
    assert len(set(values(whole, "bits"))) == 1
    assert whole[0][0]["history"] == whole[0][1]["history"]


@pytest.mark.parametrize("kill", [["before", 6, 1], ["after", 6, 0], ["evaluate", 9, 1]], ids=lambda kill: kill[0])
def test_with_all_workers_there_the_bits_are_those_of_the_undisturbed_run(
    launch: Launch, whole: Ended, kill: list[Any]
) -> None:
    killed = launch("hf_trainer.py", min_workers=2, kill=kill)

    assert "killed by SIGKILL" in killed[1]
    assert set(values(killed, "bits")) == set(values(whole, "bits"))
    for name in ("history", "flos", "loss", "steps"):
        assert values(killed, name) == values(whole, name)


def test_the_others_go_on_without_the_dead_worker(launch: Launch, whole: Ended) -> None:
    """The steps are the same; the worker that is left does all batches of each, and sums differ by rounding."""
    killed = launch("hf_trainer.py", kill=["before", 4, 1])

    assert killed[0][0]["steps"] == 12
    assert killed[0][0]["loss"] == pytest.approx(whole[0][0]["loss"], rel=1e-3)


def test_a_run_continues_from_the_trainers_own_checkpoint(launch: Launch, whole: Ended, folder: Path) -> None:
    resumed = launch("hf_trainer.py", resume=str(folder / "model" / "checkpoint-6"))

    assert set(values(resumed, "bits")) == set(values(whole, "bits"))
    assert values(resumed, "steps") == [12, 12]
