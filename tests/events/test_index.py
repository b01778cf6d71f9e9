"""Runs are found by their id, whatever it holds and however many agents start at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.events import index
from holdfast.events.index import journals_of, note_journal, recent_runs


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOLDFAST_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    "run", ["job", "none", "a/b/../c", ".", "..", "", "with space", "Größe", "x" * 400, "a\nb", "%2E", "\0"]
)
def test_a_run_id_may_hold_anything(run: str, environ: dict[str, str]) -> None:
    note_journal("another", Path("/other"), "h", environ)
    note_journal(run, Path("/logs/journal.jsonl"), "h", environ)

    assert [noted.path for noted in journals_of(run, environ)] == ["/logs/journal.jsonl"]
    assert set(recent_runs(5, environ)) == {run, "another"}


def test_long_ids_that_begin_alike_are_told_apart(environ: dict[str, str]) -> None:
    note_journal("x" * 400, Path("/one"), "h", environ)

    assert journals_of("x" * 401, environ) == []


def test_an_unknown_run_has_no_journals(environ: dict[str, str]) -> None:
    assert journals_of("job", environ) == []
    assert recent_runs(5, environ) == []


def test_a_journal_that_is_noted_again_is_listed_once_and_last(environ: dict[str, str]) -> None:
    for path in ("/a", "/b", "/a"):
        note_journal("job", Path(path), "h", environ)

    assert [noted.path for noted in journals_of("job", environ)] == ["/b", "/a"]


def test_the_oldest_runs_and_journals_are_forgotten(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(index, "RUNS_MAX", 3)
    monkeypatch.setattr(index, "JOURNALS_PER_RUN_MAX", 2)
    for number in range(5):
        note_journal(f"run{number}", Path("/j"), "h", environ)
        # Files made in the same tick of the file system's clock have no order of their own.
        for age, run in enumerate(reversed(range(number + 1))):
            file = tmp_path / "journals" / f"run{run}.jsonl"
            if file.exists():
                os.utime(file, (1000 - age, 1000 - age))
    for number in range(4):
        note_journal("run4", Path(f"/{number}"), "h", environ)

    assert recent_runs(10, environ) == ["run4", "run3", "run2"]
    assert [noted.path for noted in journals_of("run4", environ)] == ["/2", "/3"]


def test_a_damaged_file_costs_only_its_bad_lines(environ: dict[str, str], tmp_path: Path) -> None:
    note_journal("job", Path("/a"), "h", environ)
    with (tmp_path / "journals" / "job.jsonl").open("ab") as file:
        file.write(b'\xff{"run": 3}\n{"pa')

    note_journal("job", Path("/b"), "h", environ)

    assert [noted.path for noted in journals_of("job", environ)] == ["/a", "/b"]


def test_agents_that_start_together_lose_none_of_each_others_lines(environ: dict[str, str]) -> None:
    code = (
        "import sys; from pathlib import Path; from holdfast.events.index import note_journal\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for n in range(20): note_journal('job', Path(f'/{sys.argv[1]}/{n}'), 'h')"
    )
    agents = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ},
        )
        for number in range(5)
    ]
    for agent in agents:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"ready\n"
    for agent in agents:
        assert agent.stdin is not None
        agent.stdin.write(b"go\n")
        agent.stdin.flush()
    for agent in agents:
        agent.communicate()

    paths = {noted.path for noted in journals_of("job", environ)}
    assert paths == {f"/{agent}/{number}" for agent in range(5) for number in range(20)}
    assert sorted(each.name for each in (Path(environ["HOLDFAST_HOME"]) / "journals").iterdir()) == [
        ".lock",
        "job.jsonl",
    ]
