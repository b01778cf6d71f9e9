"""One program as a process of its own, for launchers written for TorchElastic."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from holdfast.compat.elastic.subprocess_handler import get_subprocess_handler


def test_a_program_runs_with_its_variables_and_its_output_goes_to_files(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['X'], sys.argv[1:]); print('bad', file=sys.stderr)"
    out, err = str(tmp_path / "out"), str(tmp_path / "err")

    handler = get_subprocess_handler(sys.executable, ("-c", code, 3), {"X": "y"}, out, err, 0)

    assert handler.proc.wait(240) == 0
    handler.close()
    assert Path(out).read_text() == "y ['3']\n"
    assert Path(err).read_text() == "bad\n"


def test_it_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    out = tmp_path / "out"
    handler = get_subprocess_handler("sh", ("-c", "echo up; sleep 1000 & wait"), {}, str(out), "", 0)
    while not out.read_text():
        assert handler.proc.poll() is None

    handler.close(signal.SIGKILL)

    assert handler.proc.wait(240) == -signal.SIGKILL
    handler.close()
