"""Results by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.tracker.results import FsspecResultTracker

pytest.importorskip("fsspec")


def test_results_are_found_by_their_place(tmp_path: Path) -> None:
    base = str(tmp_path / "results")

    FsspecResultTracker(base)["attempt_1/out"] = {"accuracy": 0.233}
    FsspecResultTracker(base)[7] = {"loss": 1, "name": "x"}

    assert FsspecResultTracker(base)["attempt_1/out"]["accuracy"] == 0.233
    assert FsspecResultTracker(f"file://{base}")["7"] == {"loss": 1, "name": "x"}
    assert FsspecResultTracker(base)["nothing"] == {}
