"""Lines of logs that come in pieces, or lie in a file that grows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.compat.torchx.lines import LogIterator, filter_regex, split_lines, split_lines_iterator
from holdfast.errors import LogUnwrittenError
from holdfast.schedulers.replies import DescribeAppResponse
from holdfast.specs import AppState
from holdfast.testing.memory_scheduler import MemoryScheduler


class Job(MemoryScheduler):
    """A scheduler with one job that ends when it is told to."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.looked = threading.Event()

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        assert app_id == "app"
        self.looked.set()
        return DescribeAppResponse(state=AppState.SUCCEEDED if self.ended.is_set() else AppState.RUNNING)


def test_lines_keep_their_ends() -> None:
    assert split_lines("a\nb\r\n\nc\x0bd") == ["a\n", "b\r\n", "\n", "c\x0bd"]
    assert split_lines("") == []
    assert list(split_lines_iterator(["a\nb", "c\n"])) == ["a\n", "b", "c\n"]


def test_lines_in_which_an_expression_is_found_pass() -> None:
    assert list(filter_regex("b+", ["abc", "x", "b"])) == ["abc", "b"]


def test_a_file_is_followed_until_its_job_has_ended(tmp_path: Path) -> None:
    job, path = Job(), tmp_path / "out.log"
    pieces = iter(LogIterator("app", str(path), job))
    found: list[str] = []

    def read() -> None:
        found.extend(pieces)

    reader = threading.Thread(target=read)
    reader.start()
    assert job.looked.wait(240)  # the file is not there yet
    path.write_text("first\n")
    with path.open("a") as file:
        file.write("second\n")
    job.ended.set()
    reader.join(240)

    assert not reader.is_alive()
    assert "".join(found) == "first\nsecond\n"


def test_without_a_tail_only_what_is_there_is_read(tmp_path: Path) -> None:
    (tmp_path / "out.log").write_bytes(b"a\n\xff\n")

    assert list(LogIterator("app", str(tmp_path / "out.log"), Job(), should_tail=False)) == ["a\n\ufffd\n"]


def test_a_job_that_ended_without_a_file_is_an_error(tmp_path: Path) -> None:
    job = Job()
    job.ended.set()

    with pytest.raises(LogUnwrittenError, match="app: app finished without writing"):
        list(LogIterator("app", str(tmp_path / "out.log"), job))
