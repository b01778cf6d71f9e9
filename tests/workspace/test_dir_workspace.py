"""Workspaces that are folders, and those that lie elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.specs import Role
from holdfast.workspace.dir_workspace import DirWorkspaceMixin, TmpDirWorkspaceMixin, walk_workspace


@pytest.fixture
def code(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    (code / "pkg" / "data").mkdir(parents=True)
    (code / "train.py").write_text("print()\n")
    (code / "pkg" / "a.py").touch()
    (code / "pkg" / "data" / "big.bin").touch()
    (code / "pkg" / "data" / "keep.txt").touch()
    (code / ".torchxignore").write_text("# comments\n*.bin\n")
    return code


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_workspace_goes_to_the_folder_of_the_run_option(code: Path, tmp_path: Path) -> None:
    role, target = Role("r", "before"), tmp_path / "job"

    DirWorkspaceMixin().build_workspace_and_update_role(role, str(code), {})
    assert role.image == "before"
    DirWorkspaceMixin().build_workspace_and_update_role(role, str(code), {"job_dir": str(target)})

    assert role.image == str(target)
    assert files(target) == {"train.py", "pkg/a.py", "pkg/data/keep.txt", ".torchxignore"}
    with pytest.raises(UsageError, match="exists already"):
        DirWorkspaceMixin().build_workspace_and_update_role(role, str(code), {"job_dir": str(target)})


def test_or_to_a_folder_of_its_own(code: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    role = Role("r", "before")

    TmpDirWorkspaceMixin().build_workspace_and_update_role(role, f"file://{code}", {})

    assert "train.py" in files(Path(role.image))
    shutil.rmtree(role.image)


def test_a_workspace_anywhere_is_walked_without_what_is_ignored(code: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(code), "/code", recursive=True)
    try:
        found = {folder: (list(folders), list(files)) for folder, folders, files in walk_workspace(memory, "/code")}
        (code / ".torchxignore").write_text("pkg\n!pkg/data/keep.txt\n")
        local = {
            f"{folder}/{name}"[len(str(code)) + 1 :]
            for folder, _, files in walk_workspace(fsspec.filesystem("file"), str(code))
            for name in files
        }
    finally:
        memory.rm("/code", recursive=True)

    assert found == {
        "/code": (["pkg"], [".torchxignore", "train.py"]),
        "/code/pkg": (["data"], ["a.py"]),
        "/code/pkg/data": ([], ["keep.txt"]),
    }
    assert local == {"train.py", ".torchxignore", "pkg/data/keep.txt"}
