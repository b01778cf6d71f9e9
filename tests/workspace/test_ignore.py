"""Which files stay behind."""

from __future__ import annotations

import pytest

from holdfast.errors import UsageError
from holdfast.workspace.ignore import Ignore


@pytest.mark.parametrize(
    ("lines", "path", "ignored"),
    [
        (["*.log"], "a.log", True),
        (["*.log"], "deep/down/a.log", True),
        (["*.log"], "a.logs", False),
        (["/top.txt"], "top.txt", True),
        (["/top.txt"], "deep/top.txt", False),
        (["data/raw"], "data/raw/x.bin", True),
        (["data/raw"], "other/data/raw/x.bin", False),
        (["build/"], "build/x", True),
        (["build/"], "build", False),  # a file of that name
        (["**/cache"], "a/b/cache/x", True),
        (["a/**/z"], "a/z", True),
        (["a/**/z"], "a/b/c/z", True),
        (["logs/**"], "logs/a/b", True),
        (["file?.txt"], "file1.txt", True),
        (["file?.txt"], "file12.txt", False),
        (["[ab].py"], "a.py", True),
        (["[!ab].py"], "a.py", False),
        (["[!ab].py"], "c.py", True),
        (["# comment", "", "  "], "# comment", False),
        ([r"\#hash"], "#hash", True),
        ([r"\!bang"], "!bang", True),
        (["*.txt", "!keep.txt"], "keep.txt", False),
        (["*.txt", "!keep.txt", "keep.txt"], "keep.txt", True),
        (["*", "!src/**"], "src/a/b.py", False),
        (["*", "!src/**"], "other/b.py", True),
        (["build/", "!build/keep.txt"], "build/keep.txt", False),
        (["./here.txt"], "here.txt", True),
        ([], ".git/config", True),
        ([], "a/__pycache__/b.cpython-311.pyc", True),
        (["!.git/"], ".git/config", False),
        (["a.b"], "axb", False),
    ],
)
def test_the_last_pattern_that_matches_decides(lines: list[str], path: str, ignored: bool) -> None:
    assert Ignore(lines).ignores(path) is ignored


def test_a_pattern_for_folders_matches_the_folder_itself() -> None:
    assert Ignore(["build/"]).ignores("build", is_folder=True)
    assert not Ignore(["build/"]).ignores("build", is_folder=False)


def test_it_is_known_whether_anything_can_be_brought_back() -> None:
    assert not Ignore(["a"]).may_bring_back
    assert Ignore(["a", "!a/b"]).may_bring_back


def test_a_pattern_that_means_nothing_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="a pattern in the workspace's ignore file cannot be read"):
        Ignore(["!"])
