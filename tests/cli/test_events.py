"""`holdfast events` finds the journals of a run and tells them as a story."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import events
from holdfast.cli.events import command
from holdfast.errors import UsageError
from holdfast.events.entry import Entry, encode
from holdfast.events.index import note_journal
from tests.processes import finish

START = 1_700_000_000.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def line(kind: str, after: float, number: int | None = None, **fields: Any) -> bytes:
    where = {"host": "host-a", "pid": 1} if number is None else {}
    given = {"sentence": f"{kind} happened", **where, **fields}
    return encode(Entry(time=START + after, kind=kind, run="job", number=number, **given)) + b"\n"


STORY = b"".join(
    [
        line("waiting", 0, sentence="1 of 2 nodes"),
        line("round_sealed", 2, 1, sentence="round 1 sealed: 2 nodes, 4 workers", data={"round": 1}),
        line("workers_started", 2.5, sentence="round 1: node 0 of 2", data={"round": 1, "duration_ms": 250}),
        line("worker_failed", 65, level="error", sentence="rank 1 failed: exit code 9"),
        line("round_broken", 65.5, 2, level="warning", sentence="round 1 broke", data={"round": 1}),
        line("run_closed", 70, 3, data={"round": 1}),
        line("journal_closed", 71),
    ]
)


def journal(tmp_path: Path, text: bytes = STORY, run: str = "job", name: str = "one") -> Path:
    path = tmp_path / "logs" / name / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    if run:
        note_journal(run, path, "host-a")
    return path


def tell(*arguments: str) -> Result:
    result = CliRunner(catch_exceptions=False).invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    return result


# -- what is told -----------------------------------------------------------------------------------------------------


def test_a_run_is_told_line_by_line_with_times_marks_rounds_and_durations(tmp_path: Path) -> None:
    journal(tmp_path)

    assert tell("job").stdout.splitlines() == [
        "      +0ms          1 of 2 nodes",
        "     +2.0s      r1  round 1 sealed: 2 nodes, 4 workers",
        "     +2.5s      r1  round 1: node 0 of 2 (250ms)",
        "    +1m05s !!   r1  rank 1 failed: exit code 9",
        "    +1m06s  !   r1  round 1 broke",
        "    +1m10s      r1  run_closed happened",
    ]


@pytest.mark.parametrize("argument", ["job", "{path}", "{folder}", "{root}", ""])
def test_a_run_is_named_by_its_id_its_journal_its_folder_or_by_being_the_last(tmp_path: Path, argument: str) -> None:
    path = journal(tmp_path)

    told = tell(argument.format(path=path, folder=path.parent, root=path.parent.parent))

    assert len(told.stdout.splitlines()) == 6
    assert told.stderr.startswith("holdfast: run job, started 2023-11-1")
    assert " ago), ended 2023-11-1" in told.stderr
    assert told.stderr.endswith(f"; logs: {path.parent}\n")


def test_a_path_that_exists_is_not_taken_for_a_run_and_a_run_not_for_a_folder(tmp_path: Path) -> None:
    journal(tmp_path)
    (tmp_path / "job").mkdir()

    assert len(tell("job").stdout.splitlines()) == 6


def test_json_prints_the_lines_as_they_stand(tmp_path: Path) -> None:
    journal(tmp_path)

    assert tell("job", "--json", "-k", "*").stdout_bytes == STORY
    assert len(tell("job", "--json", "--kind", "round_*").stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        (["--kind", "worker_*", "--kind", "waiting"], ["waiting", "worker_failed"]),
        (["--level", "warning"], ["worker_failed", "round_broken"]),
        (["--node", "host-a", "--level", "error"], ["worker_failed"]),
        (["--round", "1", "--level", "error"], ["worker_failed"]),
        (["--round", "2"], []),
        (["--grep", "RANK|sealed"], ["round_sealed", "worker_failed"]),
        (["--regex", "RANK|sealed"], ["round_sealed", "worker_failed"]),
        (["--tail", "2"], ["round_broken", "run_closed"]),
        (["-n", "2"], ["round_broken", "run_closed"]),
        (["--tail", "0"], []),
        (["--since", "10m"], []),
        (["--until", "10m", "--tail", "1"], ["run_closed"]),
    ],
)
def test_filters_narrow_the_story(tmp_path: Path, arguments: list[str], kinds: list[str]) -> None:
    journal(tmp_path)

    told = tell("job", "--json", *arguments).stdout.splitlines()

    assert [json.loads(each)["kind"] for each in told] == kinds


def test_clock_times_and_their_limits_are_those_of_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import datetime

    journal(tmp_path)
    sealed = datetime.fromtimestamp(START + 2)

    told = tell("job", "--clock", "--since", sealed.isoformat(), "--until", sealed.strftime("%H:%M:%S")).stdout

    assert told == f"{sealed:%H:%M:%S}.0      r1  round 1 sealed: 2 nodes, 4 workers\n"


def test_several_journals_of_a_run_are_one_story_with_cluster_facts_once(tmp_path: Path) -> None:
    journal(tmp_path)
    other = line("workers_started", 4000, host="host-b", pid=2, sentence="round 1: node 1 of 2", data={"round": 1})
    shared = [each + b"\n" for each in STORY.splitlines() if b'"number":null' not in each]
    journal(
        tmp_path,
        b"".join([shared[0], other, *shared[1:], line("journal_closed", 4001, host="host-b", pid=2)]),
        name="two",
    )

    assert tell("job").stdout.splitlines()[1:5] == [
        "     +2.0s      r1          round 1 sealed: 2 nodes, 4 workers",
        "     +2.5s      r1  host-a  round 1: node 0 of 2 (250ms)",
        "    +1m05s !!   r1  host-a  rank 1 failed: exit code 9",
        "    +1h06m      r1  host-b  round 1: node 1 of 2",
    ]
    assert tell("job").stdout.count("round 1 sealed") == 1


def test_agents_that_share_a_host_are_told_apart_by_their_process(tmp_path: Path) -> None:
    journal(tmp_path, line("one", 0, pid=11), name="one")
    journal(tmp_path, line("two", 1, pid=12), name="two")

    assert "host-a:12  two happened" in tell("job").stdout


def test_an_earlier_run_of_the_same_id_is_told_only_on_demand(tmp_path: Path) -> None:
    journal(tmp_path, name="old")
    journal(tmp_path, line("fresh", 1000), name="new")

    told = tell("job")

    assert told.stdout.split() == ["+0ms", "fresh", "happened"]
    assert "an earlier run had the same id; --all shows it too (journals: 1)" in told.stderr
    assert len(tell("job", "--all").stdout.splitlines()) == 7


def test_an_agent_that_was_killed_and_started_again_tells_one_story(tmp_path: Path) -> None:
    journal(tmp_path, line("killed", 0), name="first")
    journal(tmp_path, line("again", 1000), name="second")

    assert [each.split()[1] for each in tell("job").stdout.splitlines()] == ["killed", "again"]


def test_a_torn_last_line_and_foreign_lines_are_left_out_and_mentioned(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    host = socket.gethostname()
    path = journal(tmp_path, line("one", 0, host=host, pid=gone.pid) + b"what is this?\n" + line("two", 1)[:30])

    told = tell("job")

    assert told.stdout.split() == ["+0ms", "one", "happened"]
    assert f"{path} just ends, in the middle of a line: its agent (pid {gone.pid}) is gone" in told.stderr
    assert f"{path} has lines that cannot be read: 1" in told.stderr


def test_levels_have_colours_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(tmp_path)

    coloured = CliRunner().invoke(command, ["job"], color=True).stdout

    assert "\x1b[31m" in coloured
    assert "\x1b[" not in tell("job").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(command, ["job"], color=True).stdout


# -- what cannot be told ----------------------------------------------------------------------------------------------


def refused(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        CliRunner(catch_exceptions=False).invoke(command, list(arguments))
    return str(caught.value)


def test_an_unknown_run_is_answered_with_the_latest(tmp_path: Path) -> None:
    assert refused("jib") == "there is no run 'jib' on this host; no run has left a journal here yet"
    assert "no run has left a journal here yet" in refused()

    journal(tmp_path)

    assert refused("jib") == "there is no run 'jib' on this host; the latest runs here: job"
    assert refused("logs/x.jsonl").startswith("there is no file 'logs/x.jsonl' on this host")


def test_a_folder_without_a_journal_and_a_journal_that_is_gone_are_said_to_be(tmp_path: Path) -> None:
    path = journal(tmp_path)
    (tmp_path / "empty").mkdir()
    assert f"there is no journal.jsonl in {tmp_path / 'empty'}" in refused(str(tmp_path / "empty"))

    path.unlink()
    assert refused("job") == f"the journal of run 'job' is gone: {path} was there"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--grep", "("], "is not a regular expression"),
        (["--since", "soon"], "is not a time"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(tmp_path: Path, arguments: list[str], why: str) -> None:
    journal(tmp_path)

    assert why in refused("job", *arguments)


# -- real processes ---------------------------------------------------------------------------------------------------

RUN = "import sys; from holdfast.cli.events import command; command(sys.argv[1:])"


class Follower:
    """`holdfast events --follow` in its own process."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", RUN, *arguments, "--follow"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str, str]:
        out, err = finish(self.process)
        return self.process.returncode, out, err


@pytest.fixture
def followers() -> Iterator[list[Follower]]:
    started: list[Follower] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.communicate()


def append(path: Path, *texts: bytes) -> None:
    with path.open("ab") as file:
        for text in texts:
            file.write(text)


def test_following_tells_what_is_added_and_ends_when_the_journal_does(
    tmp_path: Path, followers: list[Follower]
) -> None:
    path = journal(tmp_path, line("one", 0))
    follower = Follower("job")
    followers.append(follower)

    assert follower.wait_line().endswith("one happened")
    append(path, line("two", 1)[:20])
    append(path, line("two", 1)[20:])
    assert follower.wait_line().endswith("two happened")
    late = journal(tmp_path, line("three", 2, pid=2), name="late")
    assert follower.wait_line().endswith("host-a:2  three happened")
    append(late, line("journal_closed", 3, pid=2))
    append(path, line("four", 3), line("journal_closed", 4))

    code, out, err = follower.end()
    assert code == 0
    assert err.startswith("holdfast: run job, started ")
    assert err.count("\n") == 1
    assert ", live; logs: " in err
    assert out.strip().endswith("four happened")


def test_a_journal_that_is_empty_when_following_begins_is_told_from_its_first_line(
    tmp_path: Path, followers: list[Follower]
) -> None:
    path = journal(tmp_path, b"")
    follower = Follower(str(path))
    followers.append(follower)

    append(path, line("one", 0))
    assert follower.wait_line() == "+0ms          one happened"
    append(path, line("journal_closed", 1))
    assert follower.end()[0] == 0


def test_following_filters_and_can_print_json(tmp_path: Path, followers: list[Follower]) -> None:
    path = journal(tmp_path, line("one", 0) + line("two", 1))
    follower = Follower(str(path), "--json", "--kind", "t*", "--tail", "1")
    followers.append(follower)

    assert json.loads(follower.wait_line())["kind"] == "two"
    append(path, line("four", 2), line("three", 3))
    assert json.loads(follower.wait_line())["kind"] == "three"
    append(path, line("journal_closed", 4))
    assert follower.end()[:2] == (0, "")


def test_following_an_agent_that_is_killed_ends_with_it(tmp_path: Path, followers: list[Follower]) -> None:
    agent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = journal(tmp_path, line("one", time.time() - START, host=socket.gethostname(), pid=agent.pid))
    follower = Follower(str(path))
    followers.append(follower)
    assert follower.wait_line().endswith("one happened")

    agent.kill()
    agent.communicate()

    code, _, err = follower.end()
    assert code == 0
    assert f"its agent (pid {agent.pid}) is gone" in err


def test_ctrl_c_ends_following_quietly_with_130(tmp_path: Path, followers: list[Follower]) -> None:
    path = journal(tmp_path, line("one", 0))
    follower = Follower(str(path))
    followers.append(follower)
    assert follower.wait_line().endswith("one happened")
    append(path, line("two", 1))
    assert follower.wait_line().endswith("two happened")  # from here on it is surely in its loop

    follower.process.send_signal(signal.SIGINT)

    code, out, err = follower.end()
    assert (code, out) == (130, "")
    assert err.count("\n") == 1, "only which run it was"


@pytest.mark.parametrize("flag", ["--json", "--clock"])
def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path, flag: str) -> None:
    path = journal(tmp_path, b"".join(line("k", number, sentence="x" * 200) for number in range(5000)))
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(path), flag], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    os.read(reader, 100)
    os.close(reader)

    _, err = process.communicate()

    assert process.returncode == 0
    assert err.count("\n") == 1, "only which run it was"


# -- names and what is live -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train-6jxds", "train-6", "local://holdfast/train-6jxds", "x://s/train-6jxds/role/0"])
def test_a_run_is_named_by_the_handle_or_the_id_of_its_job_or_the_beginning_of_that(tmp_path: Path, name: str) -> None:
    journal(tmp_path, run="train-6jxds")
    journal(tmp_path, run="other", name="two")

    assert len(tell(name).stdout.splitlines()) == 6


def test_the_beginning_of_several_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    journal(tmp_path, run="train-1")
    journal(tmp_path, run="train-2", name="two")

    assert refused("train").startswith("'train' could be any of 2 runs: train-")


def mine(kind: str, **fields: Any) -> bytes:
    """A line that this process wrote just now."""
    return line(kind, time.time() - START, host=socket.gethostname(), pid=os.getpid(), **fields)


def live_journal(tmp_path: Path, run: str) -> Path:
    path = tmp_path / "logs" / run / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(mine("agent_started"))
    note_journal(run, path, socket.gethostname())
    return path


def test_following_without_a_name_takes_the_newest_live_run_and_not_the_newest(
    tmp_path: Path, followers: list[Follower]
) -> None:
    path = live_journal(tmp_path, "live")
    journal(tmp_path, run="ended")
    follower = Follower()
    followers.append(follower)

    assert follower.wait_line().endswith("agent_started happened")
    append(path, mine("journal_closed"))
    assert follower.end()[0] == 0


def test_following_without_a_name_waits_for_a_run_and_says_so(tmp_path: Path, followers: list[Follower]) -> None:
    journal(tmp_path, run="ended")
    follower = Follower()
    followers.append(follower)
    assert follower.process.stderr is not None
    assert follower.process.stderr.readline() == (
        "holdfast: no run is live on this host; waiting 10 s for one to start\n"
    )
    path = live_journal(tmp_path, "live")

    assert follower.wait_line().endswith("agent_started happened")
    append(path, mine("journal_closed"))
    assert follower.end()[0] == 0


def test_where_no_run_starts_the_newest_is_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "APPEAR_S", 0.0)
    journal(tmp_path, run="ended")

    assert refused("--follow") == (
        "no run has started within 0 s; `holdfast events ended` shows the newest one, which has ended"
    )
    assert refused("--follow", "other").startswith("there is no run 'other' on this host")


def test_a_run_that_is_named_and_about_to_start_is_waited_for(tmp_path: Path, followers: list[Follower]) -> None:
    follower = Follower("job7")
    followers.append(follower)
    assert follower.process.stderr is not None
    assert "there is no run 'job7' yet; waiting" in follower.process.stderr.readline()
    path = live_journal(tmp_path, "job7")

    assert follower.wait_line().endswith("agent_started happened")
    append(path, mine("journal_closed"))
    assert follower.end()[0] == 0


def test_a_process_that_has_only_got_the_pid_of_an_agent_is_not_that_agent(tmp_path: Path) -> None:
    long_ago = line("agent_started", 0, host=socket.gethostname(), pid=os.getpid())
    journal(tmp_path, long_ago)

    assert ", its agent is gone; logs: " in tell("job").stderr
