"""The logs' layout: a folder per attempt and rank, never used twice."""

import os
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.workers import DefaultLogsSpecs, LogsSpecs, Std


def _envs(size=2, attempt=0, **more):
    env = {"TORCHELASTIC_RUN_ID": "run/1", "TORCHELASTIC_RESTART_COUNT": str(attempt), **more}
    return {rank: dict(env) for rank in range(size)}


def test_the_layout_is_the_one_people_know(tmp_path):
    dest = DefaultLogsSpecs(str(tmp_path), Std.ALL).reify(_envs())

    run = Path(dest.stdouts[0]).parents[2]
    assert run.parent == tmp_path
    assert run.name.startswith("run%2F1_")
    assert dest.stdouts[1] == str(run / "attempt_0" / "1" / "stdout.log")
    assert dest.stderrs[1] == str(run / "attempt_0" / "1" / "stderr.log")
    assert dest.error_files[1] == str(run / "attempt_0" / "1" / "error.json")
    assert dest.filtered_stdout == str(run / "attempt_0" / "filtered_stdout.log")


def test_nothing_is_wiped_when_the_membership_changes(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.ALL)
    first = specs.reify(_envs(HOLDFAST_ROUND="0"))
    Path(first.stdouts[0]).write_text("precious")

    second = specs.reify(_envs(HOLDFAST_ROUND="1"))
    third = specs.reify(_envs())

    assert Path(first.stdouts[0]).read_text() == "precious"
    assert "attempt_0_round_1" in second.stdouts[0]
    assert "attempt_0_2" in third.stdouts[0]
    assert specs.root_log_dir == str(Path(first.stdouts[0]).parents[2])


def test_every_attempt_has_its_own_folder(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.ALL)

    folders = [Path(specs.reify(_envs(attempt=n)).stdouts[0]).parent.parent.name for n in range(3)]

    assert folders == ["attempt_0", "attempt_1", "attempt_2"]


def test_streams_that_were_not_asked_for_stay_with_the_terminal(tmp_path):
    dest = DefaultLogsSpecs(str(tmp_path), redirects={0: Std.ERR}, tee={1: Std.OUT}).reify(_envs())

    assert dest.stdouts[0] == ""
    assert dest.stderrs[0].endswith("stderr.log")
    assert dest.tee_stdouts == {1: dest.stdouts[1]}
    assert dest.tee_stderrs == {}


def test_the_filter_keeps_other_ranks_off_the_console(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), tee={0: Std.ALL, 1: Std.OUT}, local_ranks_filter={0})

    dest = specs.reify(_envs())

    assert set(dest.tee_stdouts) == {0}
    assert dest.stdouts[1].endswith("1/stdout.log")
    assert dest.stderrs[1] == os.devnull


def test_devnull_disables_every_file():
    specs = DefaultLogsSpecs(os.devnull, redirects=Std.ALL)

    dest = specs.reify(_envs())

    assert set(dest.stdouts.values()) | set(dest.error_files.values()) == {os.devnull}
    assert dest.filtered_stdout == ""
    assert specs.root_log_dir == os.devnull


def test_without_a_folder_a_temporary_one_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    dest = DefaultLogsSpecs().reify(_envs())

    assert Path(dest.error_files[0]).parent.is_dir()
    assert Path(dest.error_files[0]).is_relative_to(tmp_path)


def test_a_file_is_no_log_folder(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="is a file"):
        DefaultLogsSpecs(str(tmp_path / "file"))
    with pytest.raises(UsageError, match="first attempt"):
        _ = DefaultLogsSpecs().root_log_dir


def test_a_plug_in_extends_the_abstract_class():
    with pytest.raises(TypeError):
        LogsSpecs()  # type: ignore[abstract]
