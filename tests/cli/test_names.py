"""A job or a run is named alike in every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.names import endpoint_of, find_handle, find_run, match
from holdfast.errors import UsageError
from holdfast.events.entry import Entry, encode
from holdfast.events.index import note_journal
from tests.cli.conftest import Invoke

KNOWN = ["local://holdfast/train-6jxds", "local://holdfast/train-60abc", "local://holdfast/echo-1", "echo-10"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("local://holdfast/train-6jxds", "local://holdfast/train-6jxds"),
        ("train-6jxds", "local://holdfast/train-6jxds"),
        ("train-6j", "local://holdfast/train-6jxds"),
        ("local://holdfast/train-6j", "local://holdfast/train-6jxds"),
        ("slurm://other/train-6jxds/role/0", "local://holdfast/train-6jxds"),
        ("echo-1", "local://holdfast/echo-1"),  # and not echo-10
        ("nothing", None),
        ("", None),
    ],
)
def test_a_handle_an_id_and_the_beginning_of_one_name_the_same(text: str, found: str | None) -> None:
    assert match(text, KNOWN, "jobs") == found


def test_the_beginning_of_several_is_refused_with_their_names() -> None:
    with pytest.raises(UsageError, match=r"'train' could be any of 2 jobs: local://holdfast/train-6jxds, local"):
        match("train", KNOWN, "jobs")


class _Places:
    """A runner with one job, in a namespace that lists do not show."""

    def name(self) -> str:
        return "holdfast"

    def scheduler_backends(self) -> list[str]:
        return ["broken", "kubernetes"]

    def list(self, scheduler: str) -> list[object]:
        return []

    def status(self, handle: str) -> object:
        if handle.startswith("broken:"):
            raise OSError("not reached")
        return object() if handle == "kubernetes://holdfast/team:train-x7k2m" else None


def test_a_job_in_another_namespace_is_found_by_its_id() -> None:
    runner: Any = _Places()

    assert find_handle(runner, "team:train-x7k2m") == "kubernetes://holdfast/team:train-x7k2m"
    with pytest.raises(UsageError, match="there is no job 'team:other'"):
        find_handle(runner, "team:other")


def test_a_path_is_not_taken_for_a_run(environ: dict[str, str]) -> None:
    note_journal("logs-1", Path("/j"), "h")
    Path("logs").mkdir()

    assert find_run("logs") == "logs"
    assert find_run("logs-") == "logs-1"


def test_every_command_takes_a_handle_an_id_and_the_beginning_of_one(invoke: Invoke) -> None:
    handle = invoke("run", "utils.echo", "--msg", "hi").out.strip()
    names = [handle, handle.rpartition("/")[2], handle.rpartition("/")[2][:-1], handle[:-1]]

    for command in ("status", "log", "describe", "wait", "cancel"):
        for name in names:
            assert invoke(command, name).code == 0, (command, name)
    assert invoke("delete", names[-1]).out == f"{handle} deleted\n"
    for command in ("status", "log", "describe", "wait", "cancel", "delete"):
        said = invoke(command, handle)
        assert (said.code, said.err) == (2, f"holdfast: there is no job '{handle}'; `holdfast list` shows none\n")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("events", "agent of run train-6jxds started"),
        ("runs", "run      train-6jxds"),
        ("rounds", "run 'train-6jxds' may have ended"),
        ("stacks", "run 'train-6jxds' succeeded"),
    ],
)
@pytest.mark.parametrize("name", ["local://holdfast/train-6jxds", "train-6jxds", "train-6"])
def test_every_command_for_runs_takes_the_same_names(
    invoke: Invoke, tmp_path: Path, command: str, said: str, name: str
) -> None:
    journal, sentence = tmp_path / "journal.jsonl", "agent of run train-6jxds started"
    entries = [
        Entry(time=1.0, kind="agent_started", run="train-6jxds", sentence=sentence, data={"endpoint": "localhost:1"}),
        Entry(time=2.0, kind="run_ended", run="train-6jxds", sentence="finished", data={"outcome": "succeeded"}),
    ]
    journal.write_bytes(b"".join(encode(entry) + b"\n" for entry in entries))
    note_journal("train-6jxds", journal, "h")

    told = invoke(command, name)

    assert said in told.out + told.err


def test_an_unknown_job_is_answered_with_the_latest(invoke: Invoke) -> None:
    latest = invoke("run", "utils.echo").out.strip().rpartition("/")[2]

    assert invoke("status", "nothing").err == (
        f"holdfast: there is no job 'nothing'; the latest are {latest} (`holdfast list` shows all)\n"
    )


def test_a_job_without_a_journal_is_not_an_unknown_run(invoke: Invoke) -> None:
    handle = invoke("run", "utils.echo").out.strip()

    assert f"the job {handle} has no journal" in invoke("events", handle).err


def test_the_events_of_a_job_are_found_by_its_handle(invoke: Invoke) -> None:
    Path("train.py").write_text("print('hi')\n")
    handle = invoke("run", "-j", "1x1", "train.py").out.strip()
    said = invoke("events", handle, "--json", "-n", "100")

    assert said.code == 0, said.err
    assert json.loads(said.out.splitlines()[0])["kind"] == "agent_started"
    assert said.err.startswith(f"holdfast: run {handle.rpartition('/')[2]}, started ")


def test_a_job_in_place_of_a_folder_of_checkpoints_is_recognized(invoke: Invoke) -> None:
    handle = invoke("run", "utils.echo").out.strip()

    for name in (handle, handle.rpartition("/")[2]):
        assert f"{handle} is a job: name the folder or URL" in invoke("checkpoints", name).err


def test_a_coordinator_is_found_by_its_run(invoke: Invoke, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    started = Entry(time=1.0, kind="agent_started", run="job7", data={"endpoint": "localhost:1"})
    journal.write_bytes(encode(started) + b"\n")
    note_journal("job7", journal, "h")

    assert endpoint_of("job7") == "localhost:1"
    assert "run 'job7' may have ended: `holdfast events job7` shows what happened" in invoke("rounds", "job7").err
    assert "there is no run 'local://holdfast/other'" in invoke("rounds", "local://holdfast/other").err
    journal.write_bytes(b"")
    assert "does not say where its coordinator is" in invoke("rounds", "job7").err
