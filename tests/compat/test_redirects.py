"""This process's own output, to a file for the time being."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.compat.elastic.redirects import get_std_cm, redirect, redirect_stdout
from holdfast.errors import UsageError

PROGRAM = """
import os, sys
from holdfast.compat.elastic.redirects import get_libc, redirect_stderr, redirect_stdout
print("before")
with redirect_stdout("out"), redirect_stderr("err"):
    print("from python")
    get_libc().puts(b"from c")
    os.system("echo from a child")
    print("an error", file=sys.stderr)
print("after")
"""


def test_what_python_c_and_children_write_goes_to_the_file(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout == "before\nafter\n"
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["from a child", "from c", "from python"]
    assert (tmp_path / "err").read_text() == "an error\n"


def test_a_stream_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown standard stream <stdin>"), redirect("stdin", str(tmp_path / "x")):
        pass


def test_no_file_is_no_redirection() -> None:
    with get_std_cm("", redirect_stdout):
        pass
