"""Output on its way to disk and back: nothing is lost, whatever a replica writes."""

import itertools
import resource
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers import Stream
from holdfast.schedulers.local.capture import LINE_BYTES_MAX, STDERR, STDOUT, Pipe, ReplicaLog
from holdfast.schedulers.local.logs import Wanted, follow, parse_line
from holdfast.specs import AppDef, AppState, Role


def python(bench, code, **role):
    """Submit a Python program, as it is: the macros' dollars are doubled here."""
    main = Role("main", "", entrypoint=sys.executable, args=["-c", code.replace("$", "$$")], **role)
    return bench.scheduler.submit(AppDef("job", [main]), {})


def test_a_last_line_without_an_end_is_there(bench):
    app_id = bench.submit("echo whole; printf half")

    assert bench.lines(app_id) == ["whole", "half"]
    assert (bench.folder(app_id) / "logs/main/0/stdout.log").read_bytes() == b"whole\nhalf"


def test_bytes_that_are_no_text_are_shown_and_kept(bench):
    app_id = python(bench, r"import sys; sys.stdout.buffer.write(b'a\xff\x00b\n\n \xc3\xb6\n')")

    assert bench.lines(app_id) == ["a\\xff\x00b", "", " ö"]
    assert (bench.folder(app_id) / "logs/main/0/stdout.log").read_bytes() == b"a\xff\x00b\n\n \xc3\xb6\n"


def test_a_progress_bar_shows_each_of_its_states(bench):
    app_id = python(bench, r"print('10%\r20%\r30%'); print('done\r')")

    assert bench.lines(app_id) == ["10%", "20%", "30%", "done"]


def test_a_very_long_line_stays_whole_and_one_beyond_the_limit_comes_in_pieces(bench):
    app_id = python(bench, f"print('x' * {LINE_BYTES_MAX}); print('y' * {LINE_BYTES_MAX + 5}); print('end')")

    assert bench.lines(app_id) == ["x" * LINE_BYTES_MAX, "y" * LINE_BYTES_MAX, "y" * 5, "end"]


def test_of_a_flood_every_line_arrives_in_order(bench):
    """A hundred thousand lines on each stream, followed while they are written."""
    code = "import sys\nfor n in range(100_000): sys.stdout.write(f'{n}\\n'); sys.stderr.write(f'{n}\\n')"
    app_id = python(bench, code, env={"PYTHONUNBUFFERED": ""})
    expected = [str(n) for n in range(100_000)]

    assert bench.lines(app_id, streams=Stream.STDOUT) == expected
    assert bench.lines(app_id, streams=Stream.STDERR) == expected
    assert bench.wait(app_id).state is AppState.SUCCEEDED


def test_a_script_that_opens_its_stderr_anew_loses_nothing(bench):
    """To a file it would begin again at the front."""
    app_id = bench.submit("echo one; echo two > /dev/stdout; echo three >> /dev/stdout; echo four > /dev/stderr")

    assert bench.lines(app_id, streams=Stream.STDOUT) == ["one", "two", "three"]
    assert bench.lines(app_id, streams=Stream.STDERR) == ["four"]


def test_all_attempts_of_a_replica_are_in_its_log(bench):
    app_id = bench.submit("echo attempt $$HOLDFAST_RESTART_COUNT; test $$HOLDFAST_RESTART_COUNT = 1", max_retries=1)

    assert bench.lines(app_id) == ["attempt 0", "attempt 1"]


def test_since_and_until_choose_by_the_time_of_each_line(bench, gate):
    app_id = bench.submit(f"echo early; {gate.wait}; echo late")
    bench.wait_line(app_id, "early")
    between = datetime.now()
    gate.open()
    bench.wait(app_id)

    assert bench.lines(app_id, since=between) == ["late"]
    assert bench.lines(app_id, until=between) == ["early"]
    assert bench.lines(app_id, since=between - timedelta(hours=1), until=between, regex="late") == []


def test_following_stops_at_its_until_though_the_job_goes_on(bench, gate):
    app_id = bench.submit(f"echo up; {gate.wait}")
    bench.wait_line(app_id, "up")

    assert bench.lines(app_id, until=datetime.now()) == ["up"]
    gate.open()


def test_a_mistyped_replica_is_told_which_there_are(bench):
    app_id = bench.submit("echo hello", num_replicas=3)

    with pytest.raises(UsageError, match=r"has no replica mian/0; it has main/0 to 2"):
        bench.scheduler.log_iter(app_id, "mian")
    with pytest.raises(UsageError, match="not a regular expression"):
        bench.scheduler.log_iter(app_id, "main", regex="(")
    with pytest.raises(UsageError, match="there is no job nope"):
        bench.scheduler.log_iter("nope", "main")
    bench.wait(app_id)


@pytest.fixture
def small_files():
    """Let no file of this process, and of those it starts, grow beyond a limit; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_log_that_cannot_grow_is_reported_and_blocks_no_replica(bench, gate, small_files):
    app_id = bench.submit(f"yes | head -c 300000; echo last >&2; {gate.wait}")
    bench.wait(app_id, lambda found: "are not complete" in found.msg)  # told while the job runs
    gate.open()
    found = bench.wait(app_id)

    assert found.state is AppState.SUCCEEDED
    assert "are not complete: File too large" in found.msg
    assert (bench.folder(app_id) / "logs/main/0/stdout.log").stat().st_size == 100_000
    assert (bench.folder(app_id) / "logs/main/0/stderr.log").read_text() == "last\n"


def test_what_is_missing_is_said_where_it_is_missing(tmp_path, small_files):
    """Once there is room again, lines come after a note, and the torn one does not swallow them."""
    notes = []
    log = ReplicaLog(tmp_path, notes)
    pipe = Pipe(log, STDOUT)
    log.write_lines(STDERR, [b"x" * 1000] * 99)
    log.write(STDOUT, b"y" * 200_000)
    log.write_lines(STDOUT, [b"z" * 5000])
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    log.write_lines(STDOUT, [b"back"])
    log.close()
    pipe.finish()
    lines = (tmp_path / "combined.log").read_bytes().splitlines()

    assert parse_line(lines[-1])[1:] == ("o", "back")
    assert parse_line(lines[-2])[1] == "h"
    assert "bytes of output are missing here" in parse_line(lines[-2])[2]
    assert len(notes) == 1
    assert "File too large" in notes[0]


def test_a_follower_reads_all_that_was_there_before_the_end_was_seen(tmp_path):
    """Lines that are written between its last look at the file and the end are still given."""
    path = tmp_path / "combined.log"
    path.write_bytes(b"1.0 o one\n")
    over = threading.Event()

    def wait(seconds):
        with path.open("ab") as file:
            file.write(b"2.0 o two\n3.0 e thr")
            file.write(b"ee\n4.0 o half")
        over.set()

    lines = follow(path, Wanted(), ended=over.is_set, wait=wait, now=lambda: 0.0)
    assert list(lines) == [(1.0, "one"), (2.0, "two"), (3.0, "three"), (4.0, "half")]


def test_a_follower_that_is_early_waits_for_the_file(tmp_path):
    path = tmp_path / "combined.log"
    waits = itertools.count()

    def wait(seconds):
        if next(waits) == 3:
            path.write_bytes(b"1.0 o there\n")

    lines = follow(path, Wanted(), ended=path.exists, wait=wait, now=lambda: 0.0)
    assert list(lines) == [(1.0, "there")]


def test_without_waiting_only_whole_lines_are_given(tmp_path):
    path = tmp_path / "combined.log"
    path.write_bytes(b"1.0 o one\n2.0 o ha")

    assert list(follow(path, Wanted(), ended=lambda: False, wait=None, now=lambda: 0.0)) == [(1.0, "one")]
    assert list(follow(tmp_path / "none", Wanted(), ended=lambda: False, wait=None, now=lambda: 0.0)) == []


def test_a_pipe_carries_what_is_there_and_ends(tmp_path):
    log = ReplicaLog(tmp_path, [])
    pipe = Pipe(log, STDERR)
    with Path(pipe.path).open("wb") as writer:
        writer.write(b"one\ntw")
    pipe.close_writer()

    assert pipe.carry() == 6
    assert pipe.carry() == 0
    pipe.finish()
    log.close()
    assert pipe.tail.text() == ("one", "tw")
    assert (tmp_path / "stderr.log").read_bytes() == b"one\ntw"
    assert not (tmp_path / "stdout.log").exists()
