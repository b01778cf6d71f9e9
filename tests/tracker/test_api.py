"""A program tells of its own run, to the trackers that its environment names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from holdfast import plugins
from holdfast.facts import Fact, facts
from holdfast.tracker import AppRun, app_run_from_env
from holdfast.tracker.api import (
    Lineage,
    TrackerArtifact,
    TrackerBase,
    TrackerSource,
    build_trackers,
    tracker_config_env_var_name,
)

RUN = "local://me/app-1"


class Memory(TrackerBase):
    """Keeps everything in lists."""

    def __init__(self, config: str | None) -> None:
        self.config = config
        self.told: list[tuple[object, ...]] = []

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        self.told.append((run_id, "artifact", name, path, metadata))

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        return {}

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        self.told.append((run_id, "metadata", kwargs))

    def metadata(self, run_id: str) -> Mapping[str, object]:
        return {}

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        self.told.append((run_id, "source", source_id, artifact_name))

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        return [TrackerSource(str(told[2]), None) for told in self.told if told[1] == "source"]

    def lineage(self, run_id: str) -> Lineage:
        return Lineage(descendants=["child"])

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        return []


def broken(config: str | None) -> TrackerBase:
    raise OSError("the disk is gone")


HERE = f"{__name__}:Memory"


def test_a_run_tells_every_tracker_that_its_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_JOB_ID", RUN)
    monkeypatch.setenv("TORCHX_TRACKERS", f"{HERE}, {HERE.replace('Memory', 'Second')}")
    monkeypatch.setitem(globals(), "Second", Memory)

    run = app_run_from_env()
    run.add_metadata(lr=0.1)
    run.add_artifact("model", "/models/1", {"step": 3})
    run.add_source("local://me/data-1", "clean")

    first, second = run.backends
    assert isinstance(first, Memory)
    assert isinstance(second, Memory)
    assert (
        first.told
        == second.told
        == [
            (RUN, "metadata", {"lr": 0.1}),
            (RUN, "artifact", "model", "/models/1", {"step": 3}),
            (RUN, "source", "local://me/data-1", "clean"),
        ]
    )
    assert run.job_id() == RUN
    assert app_run_from_env() is run


def test_the_run_that_this_one_belongs_to_is_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_JOB_ID", RUN)
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "sweep")
    monkeypatch.setenv("TORCHX_TRACKERS", HERE)

    run = AppRun.run_from_env()

    assert [(source.parent.id, source.artifact_name) for source in run.sources()] == [("sweep", None)]
    assert [child.id for child in run.children()] == ["child"]


def test_a_process_that_was_not_submitted_has_no_tracker() -> None:
    run = app_run_from_env()

    run.add_metadata(lr=0.1)
    assert (run.id, list(run.backends), list(run.sources()), list(run.children())) == ("<UNDEFINED>", [], [], [])


def test_a_tracker_gets_its_configuration_from_its_own_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(f"[torchx.tracker]\nmine = {HERE}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()
    monkeypatch.setenv("TORCHX_TRACKERS", "mine")
    monkeypatch.setenv(tracker_config_env_var_name("mine"), "/etc/mine")

    (tracker,) = app_run_from_env().backends

    assert isinstance(tracker, Memory)
    assert tracker.config == "/etc/mine"
    assert tracker_config_env_var_name("mine") == "TORCHX_TRACKER_MINE_CONFIG"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nobody", "the tracker 'nobody' cannot be used: LookupError: there is no tracker of this name"),
        (f"{__name__}:broken", "cannot be used: OSError: the disk is gone"),
        ("not_there_at_all:create", "cannot be used: ModuleNotFoundError: No module named 'not_there_at_all'"),
    ],
)
def test_a_tracker_that_cannot_be_made_is_told_and_costs_only_itself(name: str, sentence: str) -> None:
    heard: list[Fact] = []
    stop = facts.listen(heard.append)
    try:
        (left,) = build_trackers({name: None, HERE: "x"})
    finally:
        stop()

    assert isinstance(left, Memory)
    assert [sentence in fact.sentence for fact in heard] == [True]
