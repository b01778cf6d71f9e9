"""The tracker that keeps files in a folder."""

from __future__ import annotations

import json
from base64 import b32encode
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.tracker.api import TrackerArtifact, TrackerSource
from holdfast.tracker.backend.fsspec import FsspecTracker, create

fsspec = pytest.importorskip("fsspec")

RUN, OTHER = "local://me/app-1", "slurm:///42"


@pytest.fixture
def tracker(tmp_path: Path) -> FsspecTracker:
    return FsspecTracker(fsspec.filesystem("file"), str(tmp_path))


def test_what_a_run_tells_can_be_read_and_the_latest_counts(tracker: FsspecTracker) -> None:
    tracker.add_metadata(RUN, lr=0.1, name="a")
    tracker.add_metadata(RUN, lr=0.2)
    tracker.add_artifact(RUN, "model", "/models/1", {"step": 3})
    tracker.add_artifact(RUN, "model", "/models/2")

    assert tracker.metadata(RUN) == {"lr": 0.2, "name": "a"}
    assert tracker.artifacts(RUN) == {"model": TrackerArtifact("model", "/models/2", None)}
    assert (tracker.metadata(OTHER), tracker.artifacts(OTHER), list(tracker.sources(OTHER))) == ({}, {}, [])


def test_a_source_is_known_from_both_sides(tracker: FsspecTracker) -> None:
    tracker.add_source(RUN, OTHER, "model")
    tracker.add_source(RUN, OTHER, "model")
    tracker.add_source(RUN, OTHER, "data")
    tracker.add_source(RUN, "s3://elsewhere")

    found = {(each.source_run_id, each.artifact_name) for each in tracker.sources(RUN)}
    assert found == {(OTHER, "model"), (OTHER, "data"), ("s3://elsewhere", None)}
    assert list(tracker.sources(RUN, "data")) == [TrackerSource(OTHER, "data")]
    assert tracker.lineage(OTHER).descendants == [RUN]
    assert {each.source_run_id for each in tracker.lineage(RUN).sources} == {OTHER, "s3://elsewhere"}


def test_runs_are_listed_all_or_by_what_they_were_made_from(tracker: FsspecTracker, tmp_path: Path) -> None:
    tracker.add_metadata(RUN, a=1)
    tracker.add_source("local://me/b", RUN)
    (tmp_path / "not a run").mkdir()
    (tmp_path / "a file").touch()

    assert list(tracker.run_ids()) == [RUN, "local://me/b"]
    assert list(tracker.run_ids(parent_run_id=RUN)) == ["local://me/b"]


def test_what_torchx_wrote_is_read(tracker: FsspecTracker, tmp_path: Path) -> None:
    home = tmp_path / b32encode(RUN.encode()).decode()
    for kind in ("metadata", "artifacts", "sources"):
        (home / kind).mkdir(parents=True)
    (home / "metadata" / "1700000000000000000").write_text(json.dumps({"metadata": {"lr": 1}}))
    (home / "artifacts" / "1700000000000000001").write_text(
        json.dumps({"name": "model", "path": "/m", "metadata": {"a": "b"}})
    )
    (home / "sources" / b32encode(OTHER.encode()).decode()).write_text("\n")

    assert tracker.metadata(RUN) == {"lr": 1}
    assert tracker.artifacts(RUN)["model"] == TrackerArtifact("model", "/m", {"a": "b"})
    assert list(tracker.sources(RUN)) == [TrackerSource(OTHER, None)]
    assert tracker.lineage(OTHER).descendants == [RUN]


def test_a_file_says_where_it_keeps_things(tmp_path: Path) -> None:
    config = tmp_path / "tracker.conf"
    (tmp_path / "runs").mkdir()
    config.write_text(f"# mine\nprotocol = file\nroot_path={tmp_path / 'runs'}\nauto_mkdir=\n")

    tracker = create(str(config))
    tracker.add_metadata(RUN, a=1)

    assert FsspecTracker(fsspec.filesystem("file"), str(tmp_path / "runs")).metadata(RUN) == {"a": 1}
    assert repr(tracker) == f"<FsspecTracker: root_path={tmp_path / 'runs'}>"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("protocol=file\n", "must say protocol=... and root_path=..."),
        ("protocol=file\nroot_path=/not/there/at/all\n", "'/not/there/at/all' does not exist: create it first"),
        ("a..b=c\n", "'a..b' is not a key of a tracker"),
    ],
)
def test_a_file_that_does_not_do_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    config = tmp_path / "tracker.conf"
    config.write_text(text)

    with pytest.raises(UsageError, match=sentence.replace(".", r"\.")):
        create(str(config))
    with pytest.raises(UsageError, match="needs a file"):
        create(None)
