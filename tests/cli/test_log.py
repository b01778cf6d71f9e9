"""`holdfast log`: whose lines, which lines, and following them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.cli.log import _read_tail, parse_time
from holdfast.errors import UsageError
from holdfast.events.index import note_journal
from tests.cli.conftest import FOREVER, Invoke

COMPONENT = """
from holdfast.specs import AppDef, Role

def talk() -> AppDef:
    script = "echo $HOLDFAST_ROLE out $HOLDFAST_REPLICA_ID; echo $HOLDFAST_ROLE err >&2; echo end"
    return AppDef("talk", [Role(name, "", entrypoint="sh", args=["-c", script], num_replicas=count)
                           for name, count in (("reader", 1), ("writer", 2))])
"""


@pytest.fixture
def talk(invoke: Invoke) -> str:
    Path("talk.py").write_text(COMPONENT)
    said = invoke("run", "talk.py:talk")
    assert said.code == 0, said.err
    return said.out.strip()


def test_every_replicas_lines_come_behind_its_name(invoke: Invoke, talk: str) -> None:
    lines = invoke("log", talk).out.splitlines()

    assert [line for line in lines if "out" in line] == [
        "reader/0 reader out 0",
        "writer/0 writer out 0",
        "writer/1 writer out 1",
    ]
    assert len(lines) == 9


def test_lines_of_several_replicas_come_in_the_order_in_which_they_were_written(
    invoke: Invoke, talk: str, environ: dict[str, str]
) -> None:
    logs = Path(environ["HOLDFAST_HOME"]) / "jobs" / "holdfast" / talk.rpartition("/")[2] / "logs"
    (logs / "reader" / "0" / "combined.log").write_text("2.5 o third\n5.0 o sixth\n")
    (logs / "writer" / "0" / "combined.log").write_text("1.0 o first\n3.0 e fourth\n")
    (logs / "writer" / "1" / "combined.log").write_text("2.0 o second\n4.0 o fifth\n")
    merged = ["writer/0 first", "writer/1 second", "reader/0 third", "writer/0 fourth", "writer/1 fifth"]

    assert invoke("log", talk).out.splitlines() == [*merged, "reader/0 sixth"]
    assert invoke("log", "--tail", talk).out.splitlines() == [*merged, "reader/0 sixth"]
    assert invoke("log", "-n", "1", talk).out.splitlines() == [*merged[3:], "reader/0 sixth"]


def test_replicas_are_chosen_by_role_and_number(invoke: Invoke, talk: str) -> None:
    short = talk.rpartition("/")[2]

    assert invoke("log", "--streams", "stdout", f"{talk}/writer/1").out == "writer/1 writer out 1\nwriter/1 end\n"
    assert {line.split()[0] for line in invoke("log", f"{short}/writer").out.splitlines()} == {"writer/0", "writer/1"}
    assert {line.split()[0] for line in invoke("log", f"{short}/writer/0,1").out.splitlines()} == {
        "writer/0",
        "writer/1",
    }


def test_lines_are_chosen_by_pattern_stream_number_and_time(invoke: Invoke, talk: str) -> None:
    assert invoke("log", "--streams", "stderr", f"{talk}/reader").out == "reader/0 reader err\n"
    assert invoke("log", "--regex", "^end$", f"{talk}/reader").out == "reader/0 end\n"
    assert invoke("log", "--grep", "^end$", f"{talk}/reader").out == "reader/0 end\n"
    assert invoke("log", "-n", "1", "--streams", "stdout", f"{talk}/reader").out == "reader/0 end\n"
    assert len(invoke("log", "--since", "1h", talk).out.splitlines()) == 9
    assert invoke("log", "--until", "1h", talk).out == ""


@pytest.mark.parametrize("words", [["-n", "1"], ["--tail", "1"], ["--tail=1"], ["--lines", "1"]])
def test_the_number_of_last_lines_has_one_meaning_everywhere(invoke: Invoke, talk: str, words: list[str]) -> None:
    assert len(invoke("log", *words, f"{talk}/reader").out.splitlines()) == 1
    assert len(invoke("log", f"{talk}/reader", *words).out.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--tail", "job"], ["--follow", "job"]),
        (["-t", "job"], ["--follow", "job"]),
        (["job", "--tail"], ["job", "--follow"]),
        (["--tail", "--regex", "x", "job"], ["--follow", "--regex", "x", "job"]),
        (["--tail", "5", "job"], ["--tail", "5", "job"]),
        (["--", "--tail"], ["--", "--tail"]),
    ],
)
def test_tail_without_a_number_is_torchx_word_for_follow(words: list[str], meant: list[str]) -> None:
    assert _read_tail(words) == meant


def test_a_number_behind_tail_is_a_number_of_lines_where_no_job_has_that_id(invoke: Invoke) -> None:
    assert "there is no job yet" in invoke("log", "--tail", "4711").err


def test_the_folder_of_the_logs_is_printed_and_nothing_else(invoke: Invoke, talk: str, tmp_path: Path) -> None:
    folder = invoke("log", "--path", talk).out.strip()

    assert (Path(folder) / "writer" / "1" / "stdout.log").exists()
    assert invoke("log", "--path", f"{talk}/writer/1").out == f"{folder}/writer/1\n"
    assert invoke("status", talk).out.endswith(f"Logs: {folder}\n")
    assert invoke("status", "--json", talk).data["logs"] == folder
    assert f"logs: {folder}\n" in invoke("describe", talk).out


def test_the_folder_of_a_launch_is_printed_too(invoke: Invoke, tmp_path: Path) -> None:
    note_journal("job7", tmp_path / "logs" / "journal.jsonl", "host-a")

    assert invoke("log", "--path", "job7").out == f"{tmp_path / 'logs'}\n"
    assert "'job7' is a run of `holdfast launch`, not a job of `holdfast run`" in invoke("log", "job7").err


def test_following_a_job_that_has_ended_ends_too(invoke: Invoke, talk: str) -> None:
    said = invoke("log", "--tail", "-n", "1", f"{talk}/writer")

    assert said.code == 0
    assert len(said.out.splitlines()) == 2


def test_a_running_job_is_followed_from_another_shell_to_its_end(
    invoke: Invoke, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f"echo one; until [ -e {gate} ]; do sleep 0.05; done; echo two"
    handle = invoke("run", "--detach", "utils.sh", "sh", "-c", script).out.strip()
    follower = start("log", "-f", handle)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "sh/0 one\n"
    gate.touch()

    assert follower.stdout.readline() == "sh/0 two\n"
    assert follower.wait() == 0


def test_mistakes_are_told_in_a_sentence(invoke: Invoke, talk: str) -> None:
    assert "has no role 'trainer'; there is reader, writer" in invoke("log", f"{talk}/trainer").err
    assert "has no replica writer/7" in invoke("log", f"{talk}/writer/7").err
    assert "write them as 0,1,2" in invoke("log", f"{talk}/writer/x").err
    assert "not a regular expression" in invoke("log", "--regex", "(", talk).err
    assert "is not a time" in invoke("log", "--since", "yesterday", talk).err
    assert "is not of the form" in invoke("log", f"{talk}/a/b/c").err


NOW = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
    ],
)
def test_a_time_may_be_so_long_ago(text: str, ago: timedelta) -> None:
    assert parse_time(text, NOW) == NOW - ago


def test_a_time_may_be_a_date_or_a_time_of_day() -> None:
    assert parse_time("2026-11-15T10:30:00+00:00", NOW) == NOW - timedelta(hours=2)
    assert parse_time("2026-11-14", NOW) == datetime(2026, 11, 14).astimezone()
    assert parse_time("9:05", NOW) == datetime(2026, 11, 15, 9, 5).astimezone()
    assert parse_time(None, NOW) is None
    with pytest.raises(UsageError, match="is not a time"):
        parse_time("25:99", NOW)


def test_a_job_without_output_has_nothing_to_show(invoke: Invoke) -> None:
    handle = invoke("run", "--detach", "utils.sh", "sleep", FOREVER).out.strip()

    assert invoke("log", handle).out == ""
    invoke("cancel", handle)
    invoke("wait", handle)
