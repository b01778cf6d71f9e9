"""A call on disk, and a worker that makes it."""

from __future__ import annotations

import linecache
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.calls import folder as folders
from holdfast.calls.api import _name_of, submit
from holdfast.calls.folder import Call, CallFolder
from holdfast.calls.job import Job
from holdfast.calls.worker import main
from holdfast.errors import UsageError, WorkerFailedError
from holdfast.specs import AppState, AppStatus


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CallFolder:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    be_rank(monkeypatch, 0)
    return CallFolder.make()


def be_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int = 2) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="name another folder with folder=, or set HOLDFAST_HOME"):
        submit(print, folder=tmp_path / "file" / "below")


def ended(kept: CallFolder, state: AppState = AppState.SUCCEEDED) -> Job[Any]:
    job: Job[Any] = Job("local://holdfast/x", kept)
    job._ended = AppStatus(state)
    return job


def test_a_worker_writes_what_the_function_returned(kept: CallFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.get_native_id()
    kept.save(Call(lambda x: (x, os.environ["RANK"]), (here,)))
    for rank in (0, 1):
        be_rank(monkeypatch, rank)
        main([str(kept.path)])

    assert ended(kept).results() == {0: (here, "0"), 1: (here, "1")}
    assert ended(kept).exception() is None


class TwoArgumentsError(Exception):
    """Pickles badly: pickle calls it with one argument."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def test_an_exception_comes_back_as_it_was_with_its_traceback(kept: CallFolder) -> None:
    def wrong(x: int) -> None:
        raise KeyError(x)

    kept.save(Call(wrong, (5,)))
    with pytest.raises(KeyError):
        main([str(kept.path)])

    with pytest.raises(KeyError, match="5") as raised:
        ended(kept, AppState.FAILED).result()
    assert "in wrong" in str(raised.value.__cause__)
    assert "worker.py" not in str(raised.value.__cause__)


def test_an_exception_that_cannot_travel_is_told_by_its_text(kept: CallFolder) -> None:
    def wrong() -> None:
        raise TwoArgumentsError("one", "two")

    kept.save(Call(wrong))
    with pytest.raises(TwoArgumentsError):
        main([str(kept.path)])

    with pytest.raises(WorkerFailedError, match="one"):
        ended(kept, AppState.FAILED).result()


def test_a_result_that_cannot_travel_fails_the_call_and_says_which(kept: CallFolder) -> None:
    kept.save(Call(threading.Lock))
    main([str(kept.path)])

    with pytest.raises(WorkerFailedError, match="the result of rank 0, lock, cannot be sent back"):
        ended(kept).result()


def test_ranks_of_an_earlier_larger_world_are_left_out(kept: CallFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.save(Call(lambda: 1))
    for rank, world_size in ((0, 2), (1, 2), (0, 1)):
        be_rank(monkeypatch, rank, world_size)
        main([str(kept.path)])

    assert ended(kept).results() == {0: 1}


def test_a_missing_result_is_named(kept: CallFolder) -> None:
    kept.save(Call(lambda: 1))
    main([str(kept.path)])

    with pytest.raises(WorkerFailedError, match=r"ranks \[1\]"):
        ended(kept).results()


def test_what_cannot_be_sent_is_refused_at_once(kept: CallFolder) -> None:
    with pytest.raises(UsageError, match="cannot be sent"):
        submit(print, threading.Lock())
    with pytest.raises(UsageError, match="takes a function"):
        submit("train.py")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="workers is 0"):
        submit(print, workers=0)
    with pytest.raises(UsageError, match=r"unexpected argument 'sep'; .*functools\.partial") as refused:
        submit(print, 1, sep="-")
    assert refused.value.__suppress_context__, "one error is shown, not two"
    assert list(kept.path.parent.iterdir()) == [kept.path]


def test_only_this_user_can_read_a_call_and_old_ones_go(kept: CallFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "CALLS_KEPT", 2)
    later = [CallFolder.make() for _ in range(3)]

    assert kept.path.parent.stat().st_mode & 0o777 == 0o700
    assert later[-1].path.stat().st_mode & 0o777 == 0o700
    assert len(list(kept.path.parent.iterdir())) == 2


class Counting:
    """Counts, and saves where it is when it is told to end."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def __call__(self, goal: int) -> int:
        while self.count < goal:
            self.count += 1
            if self.count == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        return self.count

    def checkpoint(self, goal: int) -> Call:
        return Call(Counting(self.count * 100), (goal,))


def test_a_preempted_call_goes_on_where_its_checkpoint_says(kept: CallFolder) -> None:
    kept.save(Call(Counting(), (5,)))
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            main([str(kept.path)])
    finally:
        signal.signal(signal.SIGTERM, before)

    again = kept.load()
    assert isinstance(again.function, Counting)
    assert (again.function.count, again.args) == (300, (5,))


def test_a_job_has_the_name_of_its_function() -> None:
    from functools import partial

    assert [_name_of(each) for each in (test_a_missing_result_is_named, lambda: 1, partial(print, 1), Counting())] == [
        "test-a-missing-result-is-named",
        "lambda",
        "print",
        "counting",
    ]


def test_a_traceback_shows_lines_that_were_typed_into_a_notebook(
    kept: CallFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, lines = (
        "/tmp/ipykernel_7/1.py",
        ["def helper(x):\n", "    return 1 / x\n", "def typed():\n", "    helper(0)\n"],
    )
    monkeypatch.setitem(linecache.cache, cell, (99, None, lines, cell))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("".join(lines), cell, "exec"), namespace)
    kept.save(Call(namespace["typed"]))
    monkeypatch.delitem(linecache.cache, cell)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")

    with pytest.raises(ZeroDivisionError):
        main([str(kept.path)])

    assert "    return 1 / x\n" in kept.outcomes()[0].traceback
    monkeypatch.delitem(linecache.cache, cell)
