"""What people match on reads the same: messages, serialised forms, file layouts, kinds of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.conftest import Run

PROGRAM = str(Path(__file__).parent / "formats.py")


def test_a_program_prints_the_same_with_torchs_modules_and_with_ours(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()

    theirs = run("-W", "ignore", PROGRAM, str(tmp_path / "theirs")).stdout
    ours = run("-W", "ignore", "-m", "holdfast.compat", PROGRAM, str(tmp_path / "ours")).stdout

    assert ours.replace("/ours", "/theirs").splitlines() == theirs.splitlines()
    assert len(theirs.splitlines()) > 80
