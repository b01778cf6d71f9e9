"""The pump: whole lines, bounded memory, and no stream waits for another's pipe."""

import os
import threading

import pytest

from holdfast.facts import facts
from holdfast.workers.pump import Pump
from holdfast.workers.sinks import FdConsole, LogFile, SharedFile
from holdfast.workers.streams import Capture, Sinks


@pytest.fixture
def pump():
    pump = Pump()
    yield pump
    pump.close()


@pytest.fixture
def stream(pump):
    """Make a captured stream; returns the writing end and the capture."""
    ends = []

    def make(**sinks):
        read_end, write_end = os.pipe()
        ends.append(write_end)
        capture = Capture(read_end, Sinks(**sinks))
        pump.attach(capture)
        return write_end, capture

    yield make
    for end in ends:
        os.close(end)


def test_bytes_reach_the_file_as_they_are_and_lines_the_console_with_their_prefix(pump, stream, tmp_path, console):
    file = LogFile(str(tmp_path / "out.log"))
    end, capture = stream(file=file, console=console, prefix=b"[3]: ")
    data = b"one\r\n\xff\xfe\x00junk\npartial"
    os.write(end, data)

    assert pump.settle([capture]).wait(240)

    assert (tmp_path / "out.log").read_bytes() == data
    assert console.lines == [b"[3]: one", b"[3]: \xff\xfe\x00junk", b"[3]: partial"]
    assert capture.tail() == ("one", "\\xff\\xfe\\x00junk", "partial")


def test_lines_of_many_streams_are_never_mixed(pump, stream, console):
    streams = [stream(console=console, prefix=b"%d:" % n) for n in range(4)]

    def write(end, letter):
        for _ in range(2000):
            os.write(end, letter * 50)
            os.write(end, letter * 50 + b"\n")

    writers = [threading.Thread(target=write, args=(end, b"%d" % n)) for n, (end, _) in enumerate(streams)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert pump.settle([capture for _, capture in streams]).wait(240)

    assert len(console.lines) == 8000
    assert set(console.lines) == {b"%d:" % n + b"%d" % n * 100 for n in range(4)}


def test_a_flood_in_one_stream_does_not_keep_another_from_its_turn(pump, stream, console):
    flooded, _ = stream()
    quiet, _ = stream(console=console)
    enough = threading.Event()

    def flood():
        while not enough.is_set():
            os.write(flooded, b"x" * 65536)

    writer = threading.Thread(target=flood)
    writer.start()
    os.write(quiet, b"heard\n")

    console.wait_line(b"heard")
    enough.set()
    writer.join()


def test_finish_ends_a_stream_that_a_process_still_holds_open(pump, stream, console):
    end, capture = stream(console=console)
    os.write(end, b"last words")

    assert pump.finish([capture]).wait(240)

    assert capture.ended
    assert console.lines == [b"last words"]
    assert pump.finish([capture]).wait(240), "finishing twice does no harm"


def test_filtered_lines_are_copied_to_the_shared_file(pump, stream, tmp_path):
    shared = SharedFile(str(tmp_path / "filtered.log"))
    one, first = stream(filtered=shared, filters=[b"loss", b"acc"], prefix=b"[0]")
    two, second = stream(filtered=shared, filters=[b"loss", b"acc"], prefix=b"[1]")
    os.write(one, b"loss 3\nnoise\n")
    assert pump.settle([first]).wait(240)
    os.write(two, b"noise\nacc 1")
    assert pump.settle([second]).wait(240)

    shared.close()
    assert (tmp_path / "filtered.log").read_bytes() == b"[0]loss 3\n[1]acc 1\n"


def test_a_limited_file_keeps_the_newest_output(tmp_path):
    file = LogFile(str(tmp_path / "out.log"), bytes_max=100)

    for number in range(100):
        file.write(b"%09d\n" % number)
    file.close()

    old, new = (tmp_path / "out.log.old").read_bytes(), (tmp_path / "out.log").read_bytes()
    assert len(old) + len(new) <= 100
    assert (old + new).splitlines()[-1] == b"%09d" % 99
    assert [int(line) for line in (old + new).splitlines()] == list(range(90, 100))


def test_a_console_that_has_gone_away_costs_nothing():
    read_end, write_end = os.pipe()
    os.close(read_end)
    console = FdConsole(write_end)

    console.write(b"to nobody\n")
    console.write(b"again\n")

    os.close(write_end)


def test_a_console_that_is_slow_and_non_blocking_gets_everything():
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    data = b"x" * 300_000 + b"\n"
    writer = threading.Thread(target=FdConsole(write_end).write, args=(data,))
    writer.start()

    got = b""
    while len(got) < len(data):
        got += os.read(read_end, 65536)

    writer.join()
    assert got == data
    os.close(read_end)
    os.close(write_end)


def test_a_full_disk_is_reported_once_and_does_no_harm(pump, stream, console, caplog):
    end, capture = stream(file=LogFile("/dev/full"), console=console)
    os.write(end, b"one\n")
    os.write(end, b"two\n")

    assert pump.settle([capture]).wait(240)

    assert console.lines == [b"one", b"two"]
    assert caplog.text.count("the disk is full") == 1


# -- what goes wrong costs only itself ---------------------------------------------------------------------------------


@pytest.fixture
def heard():
    """Every fact of the test."""
    found = []
    stop = facts.listen(found.append)
    yield found
    stop()


def sentences(heard, kind):
    return [fact.sentence for fact in heard if fact.kind == kind]


def test_a_shared_file_that_cannot_be_made_costs_only_itself(pump, stream, console, tmp_path, heard):
    (tmp_path / "file").write_text("in the way of a folder")
    shared = SharedFile(str(tmp_path / "file" / "filtered.log"))
    end, capture = stream(file=LogFile(str(tmp_path / "out.log")), console=console, filtered=shared, filters=[b"loss"])
    os.write(end, b"loss 1\nloss 2\n")
    assert pump.settle([capture]).wait(240)
    os.write(end, b"loss 3\n")
    assert pump.settle([capture]).wait(240)

    assert (tmp_path / "out.log").read_bytes() == b"loss 1\nloss 2\nloss 3\n"
    assert console.lines == [b"loss 1", b"loss 2", b"loss 3"]
    [sentence] = sentences(heard, "log_incomplete")
    assert str(tmp_path / "file" / "filtered.log") in sentence
    assert "File exists" in sentence


def test_a_log_file_that_cannot_be_opened_costs_only_itself(pump, stream, console, tmp_path, heard):
    (tmp_path / "out.log").mkdir()
    end, capture = stream(file=LogFile(str(tmp_path / "out.log")), console=console)
    os.write(end, b"one\n")
    assert pump.settle([capture]).wait(240)

    assert console.lines == [b"one"]
    [sentence] = sentences(heard, "log_incomplete")
    assert "Is a directory" in sentence


def test_a_file_whose_folder_is_removed_before_it_turns_over_is_given_up_with_one_warning(tmp_path, heard):
    folder = tmp_path / "logs"
    file = LogFile(str(folder / "out.log"), bytes_max=100)
    file.write(b"x" * 50)
    (folder / "out.log").unlink()
    folder.rmdir()

    file.write(b"y" * 50)
    file.write(b"z" * 50)

    [sentence] = sentences(heard, "log_incomplete")
    assert "No such file or directory" in sentence


def test_output_to_a_full_disk_is_told_once_and_the_worker_goes_on(pump, stream, heard):
    fd = os.open("/dev/full", os.O_WRONLY)
    end, capture = stream(console=FdConsole(fd))
    os.write(end, b"one\n")
    assert pump.settle([capture]).wait(240)
    os.write(end, b"two\n")
    assert pump.settle([capture]).wait(240)
    os.close(fd)

    [sentence] = sentences(heard, "console_incomplete")
    assert "no inodes left" in sentence


def test_a_console_that_raises_costs_only_itself(pump, stream, tmp_path, heard):
    class Broken:
        def write(self, data):
            raise LookupError("planted")

    end, capture = stream(console=Broken(), file=LogFile(str(tmp_path / "out.log")))
    os.write(end, b"one\n")
    assert pump.settle([capture]).wait(240)
    os.write(end, b"two\n")
    assert pump.settle([capture]).wait(240)

    assert (tmp_path / "out.log").read_bytes() == b"one\ntwo\n"
    [sentence] = sentences(heard, "thread_trouble")
    assert "LookupError: planted" in sentence
    assert "in write" in sentence, "which is the traceback's"


def test_a_planted_exception_in_the_thread_is_told_and_every_pipe_is_still_read(pump, stream, console, heard):
    class Planted(Capture):
        def _emit(self, lines):
            raise LookupError("planted in the stream")

    read_end, broken = os.pipe()
    planted = Planted(read_end, Sinks())
    pump.attach(planted)
    quiet, _ = stream(console=console)

    def fill():
        for _ in range(20):  # which is far more than a pipe holds
            os.write(broken, b"x" * 65535 + b"\n")

    writer = threading.Thread(target=fill, daemon=True)
    writer.start()
    writer.join(240)
    assert not writer.is_alive(), "the worker waits in front of a full pipe"
    pump._ask(lambda: 1 / 0)
    assert pump.finish([planted]).wait(240)
    os.write(quiet, b"still here\n")
    console.wait_line(b"still here")

    told = sentences(heard, "thread_trouble")
    assert len(told) == 2
    assert "LookupError: planted in the stream" in told[0]
    assert "ZeroDivisionError" in told[1]
    assert "Traceback" in told[1]
    os.close(broken)


def test_the_thread_itself_comes_back_after_the_worst(pump, stream, console, heard):
    """Nothing that we call raises SystemExit; should anything ever, output still goes on."""

    def leave():
        raise SystemExit(1)

    dying = pump._thread
    pump._ask(leave)
    dying.join(240)
    end, _ = stream(console=console)
    os.write(end, b"again\n")
    console.wait_line(b"again")

    assert sentences(heard, "thread_trouble")


def test_a_closed_pump_is_not_waited_for(stream):
    pump = Pump()
    _, capture = stream()
    pump.close()

    assert pump.settle([capture]).wait(0)
    assert pump.finish([capture]).wait(0)
