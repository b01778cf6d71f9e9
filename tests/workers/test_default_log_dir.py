"""Log folders of runs whose user named none: few are kept, and none is taken from who is alive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.workers import default_log_dir


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Make folders, each older than the next, under a temporary folder of the test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(default_log_dir, "RUNS_KEPT_MAX", 2)
    descriptors: list[int] = []

    def make_one(*, held: bool = False) -> Path:
        path, descriptor = default_log_dir.make_folder("run_")
        age = 1000 + len(descriptors)
        os.utime(path, (age, age))
        (Path(path) / "attempt_0").mkdir()
        os.utime(path, (age, age))
        descriptors.append(descriptor)
        if not held:
            os.close(descriptor)
            descriptors[-1] = -1
        return Path(path)

    yield make_one
    for each in descriptors:
        if each >= 0:
            os.close(each)


def test_the_oldest_make_room_for_the_newest(make):
    made = [make() for _ in range(4)]

    assert [path.exists() for path in made] == [False, False, True, True]
    assert {path.parent.name for path in made} == {f"holdfast-{os.getuid()}"}


def test_a_folder_that_is_held_is_never_removed(make):
    oldest = make(held=True)
    rest = [make() for _ in range(4)]

    assert oldest.exists()
    assert not rest[0].exists()


def test_only_this_user_can_look_in(make):
    assert make().parent.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_could_have_made_is_not_used(make, tmp_path):
    (tmp_path / f"holdfast-{os.getuid()}").symlink_to(tmp_path)

    path = make()

    assert path.parent.name.startswith("holdfast_")
    assert path.parent.parent == tmp_path
