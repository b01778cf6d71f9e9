"""The journal writes down every fact, once, whatever the file does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.events.index import journals_of
from holdfast.events.journal import Journal, JournalReader
from holdfast.events.platform import RunContext
from holdfast.facts import Fact, facts

CONTEXT = RunContext("job", "host-a", os.getpid(), node="ab")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds_of(path: Path) -> list[str]:
    return [line["kind"] for line in lines_of(path)]


def test_every_fact_of_the_run_is_one_line_and_the_last_says_that_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "log" / "journal.jsonl"

    with Journal(path, CONTEXT):
        facts.publish(Fact("one", "the first\nof two lines", {"round": 1}))
        facts.publish(Fact("two", "the second", {"run": "job"}))
        facts.publish(Fact("other", "of another run", {"run": "other"}))
    facts.publish(Fact("late", "nobody listens"))

    first, second, last = lines_of(path)
    assert (first["kind"], first["sentence"], first["data"]) == ("one", "the first\nof two lines", {"round": 1})
    assert first["time"] > 0
    assert (first["run"], first["host"], first["node"], first["pid"]) == ("job", "host-a", "ab", os.getpid())
    assert (second["kind"], last["kind"]) == ("two", "journal_closed")


def test_waits_are_thinned_and_cluster_facts_stand_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", CONTEXT):
        for left in range(5, 0, -1):
            facts.publish(Fact("waiting", f"1 of 2 nodes; last call in {left} s"))
        for number in (1, 2, 2, 1, 3):
            facts.publish(Fact("round_sealed", "s", number=number))

    assert kinds_of(tmp_path / "j").count("waiting") == 1
    assert [line["number"] for line in lines_of(tmp_path / "j")[1:]] == [1, 2, 3, None]


def test_what_happens_before_there_is_a_file_is_written_when_there_is_one(tmp_path: Path) -> None:
    with Journal(None, CONTEXT) as journal:
        facts.publish(Fact("early", "s"))
        assert journal.flush()
        journal.place(tmp_path / "j")
        journal.place(tmp_path / "elsewhere")
        facts.publish(Fact("late", "s"))

    assert kinds_of(tmp_path / "j") == ["early", "late", "journal_closed"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_journal_that_never_got_a_file_leaves_none(tmp_path: Path, home: Path) -> None:
    with Journal(None, CONTEXT):
        facts.publish(Fact("early", "s"))

    assert not home.exists()


def test_an_agent_that_is_started_again_goes_on_after_a_torn_line_and_repeats_no_cluster_fact(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, CONTEXT):
        facts.publish(Fact("round_sealed", "s", number=1))
    with path.open("ab") as file:
        file.write(b'{"time": 1.0, "kin')

    with Journal(path, CONTEXT):
        facts.publish(Fact("round_sealed", "s", number=1))
        facts.publish(Fact("round_broken", "s", number=2))

    reader = JournalReader(path)
    assert [line.entry.kind for line in reader.read()] == [
        "round_sealed",
        "journal_closed",
        "round_broken",
        "journal_closed",
    ]
    assert (reader.unreadable, reader.torn) == (1, False)


def test_a_full_journal_says_so_and_still_tells_how_the_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, CONTEXT, bytes_max=20_000):
        for _ in range(200):
            facts.publish(Fact("k", "x" * 500))
        facts.publish(Fact("run_ended", "the end", {"outcome": "succeeded"}))

    kinds = kinds_of(path)
    assert kinds[-3:] == ["journal_full", "run_ended", "journal_closed"]
    assert kinds.count("journal_full") == 1
    assert "20000 bytes" in lines_of(path)[-3]["sentence"]
    assert path.stat().st_size < 22_000


def test_a_full_disk_is_reported_once(heard: list[Fact]) -> None:
    with Journal("/dev/full", CONTEXT, indexed=False):
        for _ in range(5):
            facts.publish(Fact("k", "s"))

    told = [fact.sentence for fact in heard if fact.kind != "k"]
    assert len(told) == 1
    assert "the journal of run 'job' raised OSError(28, 'No space left on device')" in told[0]


def test_a_disk_that_is_full_for_a_while_costs_only_what_did_not_fit(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: a line is torn in the middle, the next one is whole."""
    code = textwrap.dedent(
        f"""
        import os, resource
        from holdfast.events.platform import RunContext
        from holdfast.events.journal import Journal
        from holdfast.facts import Fact, facts
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        with Journal("{tmp_path}/j", RunContext("job", "h", 1), indexed=False) as journal:
            facts.publish(Fact("first", "s"))
            journal.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize("{tmp_path}/j") + 20, unlimited[1]))
            facts.publish(Fact("second", "s"))
            journal.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            facts.publish(Fact("third", "s"))
        """
    )

    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    reader = JournalReader(tmp_path / "j")
    # What the outbox says about its trouble may itself come too early to fit.
    kinds = [line.entry.kind for line in reader.read() if line.entry.kind != "outbox_trouble"]
    assert kinds == ["first", "third", "journal_closed"]
    assert reader.unreadable == 1


def test_a_file_system_that_hangs_does_not_hang_the_agent(tmp_path: Path) -> None:
    """A named pipe without a reader stands for it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    journal = Journal(pipe, CONTEXT, indexed=False)

    with journal:
        for _ in range(100):
            facts.publish(Fact("k", "x" * 10_000))
        assert not journal.flush(timeout_s=0.01)
        journal.close(timeout_s=0.01)

    for _ in drained(reader, "holdfast the journal of run 'job'"):
        pass


def drained(reader: int, thread_name: str) -> Iterator[None]:
    """Read until the thread that was stuck has ended."""
    os.set_blocking(reader, False)
    for thread in threading.enumerate():
        while thread.name == thread_name and thread.is_alive():
            try:
                os.read(reader, 1 << 20)
            except BlockingIOError:
                thread.join(0.01)
            yield
    os.close(reader)


WRITER = """
import os, sys
from holdfast.events.platform import RunContext
from holdfast.events.journal import Journal
from holdfast.facts import Fact, facts
with Journal(sys.argv[1], RunContext("job", "h", os.getpid())) as journal:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(200):
        facts.publish(Fact("k", str(number), {"pid": os.getpid()}))
    journal.flush()
    print("written", flush=True)
    sys.stdin.readline()
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_processes_that_share_a_file_mix_no_lines_and_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writers = [start_writer(path) for _ in range(4)]
    for each in writers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"

    for each in writers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in writers:
        each.communicate("end\n")

    lines = [line for line in lines_of(path) if line["kind"] == "k"]
    for each in writers:
        told = [line["sentence"] for line in lines if line["data"]["pid"] == each.pid]
        assert told == [str(number) for number in range(200)]


def test_a_killed_agent_leaves_what_it_had_written(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = start_writer(path)
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()
    assert [writer.stdout.readline() for _ in range(2)] == ["ready\n", "written\n"]

    writer.send_signal(signal.SIGKILL)
    writer.communicate()

    assert kinds_of(path) == ["k"] * 200


def test_the_journal_is_found_by_its_runs_id(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", CONTEXT):
        pass

    (noted,) = journals_of("job")
    assert (noted.path, noted.host) == (str(tmp_path / "j"), "host-a")


def test_a_home_that_cannot_be_written_costs_only_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[Fact]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", "/proc/nothing")

    with Journal(tmp_path / "j", CONTEXT):
        facts.publish(Fact("k", "s"))

    assert "k" in kinds_of(tmp_path / "j")
    told = [fact.sentence for fact in heard if fact.kind == "journal_unlisted"]
    assert len(told) == 1
    assert f"`holdfast events job` will not find {tmp_path / 'j'}; name the file instead" in told[0]


def test_a_forked_worker_does_not_write_into_its_agents_journal(tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import os
        from holdfast.events.platform import RunContext
        from holdfast.events.journal import Journal
        from holdfast.facts import Fact, facts
        with Journal("{tmp_path}/j", RunContext("job", "h", 1), indexed=False) as journal:
            facts.publish(Fact("before", "s"))
            journal.flush()
            pid = os.fork()
            facts.publish(Fact("after" if pid else "in_the_child", "s"))
            journal.flush()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        """
    )

    subprocess.run([sys.executable, "-c", code], check=True)

    assert kinds_of(tmp_path / "j") == ["before", "after", "journal_closed"]
