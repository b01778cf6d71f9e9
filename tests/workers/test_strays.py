"""Processes that workers leave behind are told from those of others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.workers import strays
from holdfast.workers.plan import GANG_VARIABLE
from holdfast.workers.strays import children, has_token

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str, **environ: str) -> int:
        process = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # it runs
        return process.pid

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_is_known_by_its_token_also_while_it_becomes_another_program(start, tmp_path: Path) -> None:
    """In the midst of an exec it shows no environment; this one does hardly anything else."""
    script = tmp_path / "again.sh"
    script.write_text('#!/bin/sh\n[ -e told ] || { touch told; echo; }\nexec "$0"\n')
    script.chmod(0o755)
    pid = start(str(script), PATH=os.environ["PATH"], **{GANG_VARIABLE: "mine"})

    assert all(has_token(pid, "mine") for _ in range(3000))
    assert not any(has_token(pid, "another") for _ in range(100))


def test_a_process_without_an_environment_belongs_to_no_gang(start) -> None:
    assert not has_token(start("/usr/bin/env", "-i", "/bin/sh", "-c", "echo; exec sleep 1000"), "mine")


def test_a_list_of_children_that_the_kernel_cut_short_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = iter([[1], [1, 2], [1, 2]])
    monkeypatch.setattr(strays, "_list_children", lambda _: next(lists))

    assert children(os.getpid()) == [1, 2]
