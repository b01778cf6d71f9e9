"""What an agent leaves on disk: for the next one in its place, and for no other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.coordinator.messages import Ballot, Heir, Memory, RoundId, Term
from holdfast.rendezvous.memory import VALID_S, MemoryFile

KNOWN = Memory(
    ("a",), Term(2, "c"), (Ballot(RoundId(1, "x"), 2, 2, "a", ("a", "b"), firm=True),), (Heir("b", "10.0.0.2:7"),)
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))


def open_file(host: str = "h", run: str = "job7") -> MemoryFile:
    return MemoryFile(run, "h:29400", host)


def test_the_next_agent_finds_it_once_the_first_is_gone() -> None:
    first = open_file()
    first.keep(KNOWN)
    beside = open_file()
    first.close()
    second = open_file()

    assert (first.found, beside.found, second.found) == (None, None, KNOWN)
    beside.close()
    second.close()


@pytest.mark.parametrize(("host", "run"), [("g", "job7"), ("h", "job8")])
def test_another_host_or_run_does_not(host: str, run: str) -> None:
    first = open_file()
    first.keep(KNOWN)
    first.close()
    other = open_file(host, run)

    assert other.found is None
    other.close()


def test_it_is_void_once_the_run_is_over_or_its_agent_long_dead(tmp_path: Path) -> None:
    first = open_file()
    first.keep(KNOWN)
    first.forget()
    first.close()
    second = open_file()
    assert second.found is None

    second.keep(KNOWN)
    second.close()
    (path,) = tmp_path.rglob("*.memory")
    long_ago = time.time() - VALID_S - 1
    os.utime(path, (long_ago, long_ago))
    third = open_file()

    assert third.found is None
    third.close()


def test_an_agent_that_lives_on_keeps_it_valid(tmp_path: Path) -> None:
    first = open_file()
    first.keep(KNOWN)
    (path,) = tmp_path.rglob("*.memory")
    os.utime(path, (0, 0))
    first.touch()
    first.close()
    second = open_file()

    assert second.found == KNOWN
    second.close()


def test_the_last_one_that_was_written_whole_counts(tmp_path: Path) -> None:
    later = msgspec.structs.replace(KNOWN, term=Term(3, "d"))
    first = open_file()
    first.keep(KNOWN)
    first.keep(later)
    first.close()
    second = open_file()
    assert second.found == later
    second.close()

    (path,) = tmp_path.rglob("*.memory")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"d"', b'"?"'))
    third = open_file()

    assert third.found == KNOWN
    third.close()


def test_nothing_is_left_of_a_run_that_is_over_nor_of_one_that_is_long_forgotten(tmp_path: Path) -> None:
    first, forgotten = open_file(), open_file(run="job8")
    forgotten.keep(KNOWN)
    forgotten.close()
    (path,) = tmp_path.rglob("*.memory")
    os.utime(path, (0, 0))
    first.keep(KNOWN)
    first.forget()
    first.close()
    (swept,) = tmp_path.rglob("swept")
    os.utime(swept, (0, 0))
    open_file().close()

    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [swept]


def test_not_every_agent_looks_through_what_others_have_left(tmp_path: Path) -> None:
    open_file().close()
    forgotten = open_file(run="job8")
    forgotten.keep(KNOWN)
    forgotten.close()
    (path,) = tmp_path.rglob("*.memory")
    os.utime(path, (0, 0))
    open_file().close()

    assert path.exists()


def test_one_that_cannot_be_read_or_kept_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_file()
    first.keep(KNOWN)
    first.close()
    (path,) = tmp_path.rglob("*.memory")
    path.write_text("{" * 100)
    second = open_file()
    assert second.found is None
    assert "is left out" in caplog.text
    second.close()

    (tmp_path / "file").touch()
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "file"))
    nowhere = open_file()
    nowhere.keep(KNOWN)
    nowhere.close()
    assert "will not know" in caplog.text
