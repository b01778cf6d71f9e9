"""Streams: nothing that was written is held back for long, lines stay whole, and what is shown is what was written."""

import fcntl
import os
import struct
import termios
import threading

import pytest

from holdfast.workers.pump import Pump
from holdfast.workers.sinks import FdConsole, LogFile
from holdfast.workers.streams import Capture, Passage, Sinks
from holdfast.workers.terminals import open_terminal


@pytest.fixture
def pump():
    pump = Pump()
    yield pump
    pump.close()


class Shown:
    """A pipe in the place of the agent's stdout, and what comes out of it."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()
        self.seen = b""

    def wait(self, size):
        """Read up to so many bytes in all; a test that waits too long is ended from outside."""
        while len(self.seen) < size:
            self.seen += os.read(self.read_end, size - len(self.seen))
        return self.seen

    def close(self):
        os.close(self.read_end)
        os.close(self.write_end)


@pytest.fixture
def shown():
    made = Shown()
    yield made
    made.close()


@pytest.fixture
def captured(pump, shown, tmp_path):
    """Make a captured stream that is shown and kept in a file; returns the writing end and the stream."""
    ends = []

    def make(prefix):
        read_end, write_end = os.pipe()
        ends.append(write_end)
        sinks = Sinks(file=LogFile(str(tmp_path / prefix)), console=FdConsole(shown.write_end), prefix=prefix.encode())
        stream = Capture(read_end, sinks)
        pump.attach(stream)
        return write_end, stream

    yield make
    for end in ends:
        os.close(end)


@pytest.fixture
def passed(pump, shown):
    """Make a stream that passes through; returns the writing end and the stream."""
    ends = []

    def make():
        read_end, write_end = os.pipe()
        ends.append(write_end)
        stream = Passage(read_end, FdConsole(shown.write_end))
        pump.attach(stream)
        return write_end, stream

    yield make
    for end in ends:
        os.close(end)


def test_a_line_that_takes_its_time_is_shown_as_it_comes(pump, captured, shown, tmp_path):
    end, stream = captured("0:")
    os.write(end, b"compiling... ")
    assert shown.wait(15) == b"0:compiling... "
    os.write(end, b"still... ")
    assert shown.wait(24) == b"0:compiling... still... "
    os.write(end, b"done\nnext\n")

    assert shown.wait(36) == b"0:compiling... still... done\n0:next\n"
    assert stream.tail() == ("compiling... still... done", "next"), "a report has the line as a whole"
    assert (tmp_path / "0:").read_bytes() == b"compiling... still... done\nnext\n"


def test_a_line_between_ends_the_one_that_was_begun(pump, captured, shown):
    first, _ = captured("0:")
    second, _ = captured("1:")
    os.write(first, b"compiling... ")
    shown.wait(15)
    os.write(second, b"between\n")
    shown.wait(15 + 1 + 10)
    os.write(first, b"done\n")

    assert shown.wait(26 + 7) == b"0:compiling... \n1:between\n0:done\n"


def test_a_line_that_was_ended_by_another_is_not_ended_twice(pump, captured, shown):
    first, stream = captured("0:")
    second, _ = captured("1:")
    os.write(first, b"whole")
    shown.wait(7)
    os.write(second, b"between\n")
    shown.wait(18)
    os.write(first, b"\n")
    assert pump.settle([stream]).wait(240)
    os.write(first, b"next\n")

    assert shown.wait(25) == b"0:whole\n1:between\n0:next\n"


def test_a_killed_workers_last_words_are_ended_once(pump, captured, shown):
    end, stream = captured("0:")
    os.write(end, b"half a li")
    shown.wait(11)
    assert pump.finish([stream]).wait(240)

    assert shown.wait(12) == b"0:half a li\n"
    assert stream.tail() == ("half a li",)


@pytest.mark.parametrize(
    "data",
    [
        b"no end",
        b"\r 10%\r 20%\r 30%",
        bytes(range(256)) * 10,
        b"x" * 1_000_000,
        "Gr\u00fc\u00dfe".encode()[:-1],
        b"\n\n\r\n",
    ],
    ids=["no end", "progress", "binary", "long", "half a letter", "empty lines"],
)
def test_what_passes_is_not_changed(pump, passed, shown, data):
    end, stream = passed()
    writer = threading.Thread(target=os.write, args=(end, data))
    writer.start()

    assert shown.wait(len(data)) == data
    writer.join()
    assert pump.finish([stream]).wait(240)


def test_lines_that_pass_are_not_mixed(pump, passed, shown):
    streams = [passed() for _ in range(3)]

    def write(end, letter):
        for _ in range(1000):
            for piece in (letter * 20, b" ", letter * 20, b"\n"):  # as `print` does under `python -u`
                os.write(end, piece)

    writers = [threading.Thread(target=write, args=(end, b"%d" % n)) for n, (end, _) in enumerate(streams)]
    for writer in writers:
        writer.start()
    lines = shown.wait(3 * 1000 * 42).splitlines()
    for writer in writers:
        writer.join()

    assert len(lines) == 3000
    assert set(lines) == {b"%d" % n * 20 + b" " + b"%d" % n * 20 for n in range(3)}


def test_when_the_reader_is_gone_the_worker_learns_of_it(pump):
    shown = Shown()
    read_end, write_end = os.pipe()
    pump.attach(Passage(read_end, FdConsole(shown.write_end)))
    os.close(shown.read_end)

    def write_on():
        while True:
            os.write(write_end, b"line\n" * 1000)

    with pytest.raises(BrokenPipeError):
        write_on()

    os.close(write_end)
    os.close(shown.write_end)


def test_a_terminal_of_our_own_is_like_the_agents(pump, shown):
    """It is a terminal, as large as the agent's, follows its size, and changes no byte."""
    agents, screen = os.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    ours, theirs, follow = open_terminal(screen)

    assert os.isatty(theirs)
    assert os.get_terminal_size(theirs) == (101, 33)
    stream = Passage(ours, FdConsole(shown.write_end), follow)
    pump.attach(stream)
    data = b"colour \x1b[31m\ttab\r50%\r\n\x04\x03end"
    os.write(theirs, data)
    assert shown.wait(len(data)) == data

    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
    follow.__self__._looked_at = float("-inf")  # as if a second had gone by
    os.write(theirs, b"more")
    shown.wait(len(data) + 4)
    assert os.get_terminal_size(theirs) == (50, 20)

    os.close(theirs)
    assert pump.finish([stream]).wait(240)
    os.close(agents)
    os.close(screen)
