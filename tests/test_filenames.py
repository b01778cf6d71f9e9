"""Run ids and job names as names of files: any text, one visible component, no two alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.checkpoint import memory
from holdfast.coordinator.records import RecordFolder
from holdfast.coordinator.state import RunRecord
from holdfast.filenames import file_name
from holdfast.workers.logs import DefaultLogsSpecs

#: Ids that were confused with each other, or led out of the folder, or had no file at all.
ODD = [
    "a/b", "a-b", "a:b", "a%2Fb", "a_b", "..", ".", "", "%", "%2E", ".hidden", "../up", "x" * 300, "x" * 301,
    "é" * 200, "語" * 200, "\0", "a\nb", "~", "%~", "\udce9", "A", "a", "a ", " a", "x" * 150, "x" * 151,
]  # fmt: skip


def test_odd_names_stay_different_and_within_one_folder(tmp_path: Path) -> None:
    for text in ODD:
        path = tmp_path / file_name(text)
        path.mkdir()  # fails where there is one of that name already
        (path / "x").mkdir()
        assert path.parent == tmp_path
        assert path.resolve().parent == tmp_path
    assert len(list(tmp_path.iterdir())) == len(ODD)


anything = st.text(st.characters(exclude_categories=()), max_size=400)


@given(anything, anything)
@example("x" * 80 + "%~" + "0" * 40, "x" * 200)
def test_different_texts_have_different_names(one: str, other: str) -> None:
    name = file_name(one)

    assert (name == file_name(other)) == (one == other)
    assert name.isascii()
    assert len(name) <= 150
    assert not set(name) & {"/", "\0"}
    assert name[0] != "."


@pytest.mark.parametrize("text", ["train-x7k2m", "job_1", "v1.2"])
def test_plain_names_stay_as_they_are(text: str) -> None:
    assert file_name(text) == text


@pytest.mark.parametrize("run", ODD)
def test_states_in_memory_lie_in_a_folder_of_their_run_alone(run: str) -> None:
    folder = memory.run_folder(run)

    assert folder.parent == memory.user_folder()
    assert folder.name not in (".", "..", "")
    assert [other for other in ODD if memory.run_folder(other) == folder] == [run]


@pytest.mark.parametrize("run", [run for run in ODD if run != "\udce9"])
def test_the_record_of_a_run_is_found_again(run: str, tmp_path: Path) -> None:
    records = RecordFolder(tmp_path)
    records.save("another", RunRecord())
    records.save(run, RunRecord(last_number=7))

    assert records.load()[run].last_number == 7
    records.forget(run)
    assert list(records.load()) == ["another"]


def test_the_record_that_an_older_holdfast_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "~job%2F1.json").write_text('{"version": 1, "last_number": 3}')
    records = RecordFolder(tmp_path)
    assert records.load()["~job/1"].last_number == 3

    records.save("~job/1", RunRecord(last_number=4))

    assert [record.last_number for record in records.load().values()] == [4]


@pytest.mark.parametrize("run", ODD)
def test_logs_of_any_run_have_a_folder(run: str, tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(str(tmp_path))
    logs.reify({0: {"TORCHELASTIC_RUN_ID": run}})

    assert Path(logs.root_log_dir).parent == tmp_path
