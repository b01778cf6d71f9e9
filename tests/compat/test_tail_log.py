"""Files that others write, shown as they grow."""

from __future__ import annotations

import io
import threading
from pathlib import Path

from holdfast.compat.elastic.tail_log import TailLog, tail_logfile


class Screen(io.StringIO):
    """Says when something was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Semaphore(0)

    def write(self, text: str) -> int:
        count = super().write(text)
        self.shown.release()
        return count


def test_lines_are_shown_while_the_files_grow(tmp_path: Path) -> None:
    files = {rank: str(tmp_path / f"{rank}.log") for rank in range(2)}
    screen = Screen()
    tail = TailLog("worker", files, screen, {1: "[one] "}, interval_sec=0.01).start()

    with Path(files[0]).open("w", buffering=1) as first, Path(files[1]).open("w", buffering=1) as second:
        first.write("a\n")
        assert screen.shown.acquire(timeout=240)
        second.write("b\n")
        assert screen.shown.acquire(timeout=240)
        assert not tail.stopped()
        first.write("last\n")
    tail.stop()

    assert sorted(screen.getvalue().splitlines()) == ["[one] b", "[worker0]:a", "[worker0]:last"]
    assert tail.stopped()


def test_only_the_lines_that_are_wanted_are_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("loss 1\nnoise\nloss 2\n")
    screen = Screen()

    tail = TailLog("w", {0: str(tmp_path / "log")}, screen, log_line_filter=lambda line: "loss" in line).start()
    tail.stop()

    assert screen.getvalue() == "[w0]:loss 1\n[w0]:loss 2\n"


def test_a_file_that_never_comes_and_no_file_at_all_end_with_the_stop(tmp_path: Path) -> None:
    for files in ({0: str(tmp_path / "never")}, {}):
        tail = TailLog("w", files, Screen(), interval_sec=0.01).start()
        tail.stop()
        assert tail.stopped()


def test_one_file_can_be_shown_by_hand(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x\n")
    over = threading.Event()
    over.set()
    screen = Screen()

    tail_logfile("> ", str(tmp_path / "log"), screen, over, 0.01)

    assert screen.getvalue() == "> x\n"
