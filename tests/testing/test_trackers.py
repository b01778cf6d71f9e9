"""Every tracker does what the contract says."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import plugins
from holdfast.testing.tracker_contract import Case, tracker_cases
from holdfast.tracker.api import TrackerBase

fsspec = pytest.importorskip("fsspec")


@pytest.mark.parametrize("case", tracker_cases(), ids=lambda case: case.__name__)
@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_contract(case: Case, protocol: str, tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    fsspec.filesystem(protocol).makedirs(root)
    settings = tmp_path / "tracker.conf"
    settings.write_text(f"protocol={protocol}\nroot_path={root}\n")
    create = next(each for each in plugins.find("holdfast.tracker") if each.name == "fsspec").load()

    def make() -> TrackerBase:
        tracker: TrackerBase = create(str(settings))
        return tracker

    case(make)
