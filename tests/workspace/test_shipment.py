"""Shipping code: what arrives, what stays behind, and what is not copied twice."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.workspace import shipment
from holdfast.workspace.shipment import prune, roots, ship, survey

OLD = 1_700_000_000


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tree(
        tmp_path / "project", "train.py", "lib/model.py", "lib/deep/more.py", ".git/config", "lib/__pycache__/x.pyc"
    )


def tree(root: Path, *paths: str) -> Path:
    """Make files that have not been changed for long; each holds its own path."""
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
        os.utime(file, (OLD, OLD))
    return root


CAP_DAC_OVERRIDE = 1


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


@pytest.fixture
def plain_user() -> Iterator[None]:
    """Run the test without root's right to write to read-only files; for any other user nothing changes."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = _CapHeader(0x20080522, 0), (_CapData * 2)()
    assert libc.capget(ctypes.byref(header), before) == 0
    after = (_CapData * 2).from_buffer_copy(before)
    after[0].effective &= ~(1 << CAP_DAC_OVERRIDE)
    assert libc.capset(ctypes.byref(header), after) == 0
    yield
    assert libc.capset(ctypes.byref(header), before) == 0


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()}


def test_code_arrives_and_ignored_files_stay_behind(project: Path, tmp_path: Path) -> None:
    shipped = ship(str(project), tmp_path / "job")

    assert files(tmp_path / "job") == {"train.py", "lib/model.py", "lib/deep/more.py"}
    assert (tmp_path / "job/lib/model.py").read_text() == "lib/model.py"
    assert (shipped.copied, shipped.linked) == (3, 0)


@pytest.mark.parametrize("name", shipment.IGNORE_FILES)
def test_an_ignore_file_says_what_stays_behind(project: Path, tmp_path: Path, name: str) -> None:
    (project / name).write_text("*\n!lib/**\nlib/deep/\n!.git/\n")
    ship(str(project), tmp_path / "job")

    assert files(tmp_path / "job") == {"lib/model.py", "lib/__pycache__/x.pyc", ".git/config"}


def test_our_ignore_file_wins_over_the_others(project: Path, tmp_path: Path) -> None:
    (project / ".dockerignore").write_text("train.py\n")
    (project / ".holdfastignore").write_text("lib\n.*ignore\n")
    ship(str(project), tmp_path / "job")

    assert files(tmp_path / "job") == {"train.py"}


@pytest.mark.usefixtures("plain_user")
def test_unchanged_files_are_not_copied_again(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ship(str(project), tmp_path / "one", cache)
    (project / "train.py").write_text("changed")
    os.utime(project / "train.py", (OLD + 1, OLD + 1))
    second = ship(str(project), tmp_path / "two", cache)

    assert (second.copied, second.linked) == (1, 2)
    assert (tmp_path / "one/train.py").read_text() == "train.py"  # the job that runs is not disturbed
    assert (tmp_path / "two/train.py").read_text() == "changed"
    assert (tmp_path / "one/lib/model.py").samefile(tmp_path / "two/lib/model.py")


@pytest.mark.usefixtures("plain_user")
def test_shipped_files_that_jobs_share_are_read_only(project: Path, tmp_path: Path) -> None:
    (project / "train.py").chmod(0o755)
    ship(str(project), tmp_path / "one", tmp_path / "cache")

    assert stat.S_IMODE((tmp_path / "one/train.py").stat().st_mode) == 0o555
    assert stat.S_IMODE((project / "train.py").stat().st_mode) == 0o755


@pytest.mark.usefixtures("plain_user")
def test_a_kept_file_that_was_written_to_is_not_used_again(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ship(str(project), tmp_path / "one", cache)
    spoiled = tmp_path / "one/train.py"
    spoiled.chmod(0o644)
    spoiled.write_text("spoiled")
    ship(str(project), tmp_path / "two", cache)

    assert (tmp_path / "two/train.py").read_text() == "train.py"


@pytest.mark.usefixtures("plain_user")
def test_a_file_that_has_just_changed_is_always_copied(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text("fresh")
    first = ship(str(project), tmp_path / "one", tmp_path / "cache")
    second = ship(str(project), tmp_path / "two", tmp_path / "cache")

    assert (first.copied, first.linked) == (3, 0)
    assert (second.copied, second.linked) == (1, 2)


def test_several_roots_go_where_they_are_told(tmp_path: Path) -> None:
    app, lib = tree(tmp_path / "app", "main.py"), tree(tmp_path / "lib", "a.py")
    single = tree(tmp_path, "notes.txt") / "notes.txt"
    ship({str(app): "", f"file://{lib}": "vendor/lib", str(single): "doc"}, tmp_path / "job")

    assert files(tmp_path / "job") == {"main.py", "vendor/lib/a.py", "doc/notes.txt"}


def test_a_survey_says_what_a_shipment_would_bring(project: Path, tmp_path: Path) -> None:
    (project / "link.py").symlink_to("train.py")
    found = survey(project, avoid=[project / "lib/deep"])

    assert (found.files, found.bytes) == (3, len("train.py") * 2 + len("lib/model.py"))
    assert survey(project / "train.py").files == 1
    assert not (tmp_path / "job").exists()


def test_what_cannot_be_written_is_told_in_a_sentence(project: Path, tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file where the folder should go")

    with pytest.raises(UnavailableError, match="the workspace cannot be copied to"):
        ship(str(project), tmp_path / "job")


def test_links_stay_links_and_empty_folders_arrive(project: Path, tmp_path: Path) -> None:
    (project / "data").mkdir()
    (project / "link.py").symlink_to("train.py")
    (project / "gone").symlink_to("nowhere")
    ship(str(project), tmp_path / "job")
    ship(str(project), tmp_path / "job")  # over what is there already

    assert (tmp_path / "job/data").is_dir()
    assert (tmp_path / "job/link.py").readlink() == Path("train.py")
    assert (tmp_path / "job/gone").is_symlink()


def test_a_destination_inside_the_workspace_is_not_shipped_into_itself(project: Path) -> None:
    ship(str(project), project / "jobs/one", project / "cache")
    ship(str(project), project / "jobs/one", project / "cache")

    assert files(project / "jobs/one") == {"train.py", "lib/model.py", "lib/deep/more.py"}


def test_what_is_no_local_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        ship(str(tmp_path / "nothing"), tmp_path / "job")
    with pytest.raises(UsageError, match="not on this machine"):
        ship("s3://bucket/code", tmp_path / "job")
    with pytest.raises(UsageError, match="outside of the job's folder"):
        roots({str(tmp_path): "../up"})


def test_a_folder_with_too_many_files_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipment, "FILES_MAX", 2)

    with pytest.raises(UsageError, match="over 2 files"):
        ship(str(project), tmp_path / "job")


@pytest.mark.usefixtures("plain_user")
def test_kept_files_that_no_job_has_any_more_are_dropped(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ship(str(project), tmp_path / "one", cache)
    assert prune(cache, unused_s=-60) == 0  # the job has them

    (tmp_path / "one/train.py").unlink()
    assert prune(cache) == 0  # too young
    assert prune(cache, unused_s=-60) == 1
    assert len(list(cache.iterdir())) == 2


def test_a_job_cannot_write_to_the_files_of_another_whatever_its_rights(project: Path, tmp_path: Path) -> None:
    for job in ("one", "two"):
        ship(str(project), tmp_path / job, tmp_path / "cache")
    try:
        (tmp_path / "one/train.py").write_text("changed by job one")
    except PermissionError:
        assert os.geteuid() != 0
    ship(str(project), tmp_path / "three", tmp_path / "cache")

    assert (tmp_path / "two/train.py").read_text() == "train.py"
    assert (tmp_path / "three/train.py").read_text() == "train.py"
    assert (project / "train.py").read_text() == "train.py"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write to read-only files")
def test_what_root_ships_is_not_shared(project: Path, tmp_path: Path) -> None:
    (project / "train.py").chmod(0o750)
    shipped = [ship(str(project), tmp_path / job, tmp_path / "cache") for job in ("one", "two")]

    assert [(each.copied, each.linked) for each in shipped] == [(3, 0), (3, 0)]
    assert (tmp_path / "one/train.py").stat().st_nlink == 1
    assert stat.S_IMODE((tmp_path / "one/train.py").stat().st_mode) == 0o750
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.usefixtures("plain_user")
def test_the_right_to_write_to_read_only_files_is_asked_of_the_file_system(tmp_path: Path) -> None:
    assert not shipment.writes_read_only(tmp_path)
    assert list(tmp_path.iterdir()) == []
