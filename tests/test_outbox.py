"""The outbox: a caller that puts something in never waits and never hears of the receiver's troubles."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Iterator

import pytest

from holdfast.facts import Fact, facts
from holdfast.outbox import Outbox

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0


@pytest.fixture
def heard() -> Iterator[list[Fact]]:
    """Every fact of the test."""
    found: list[Fact] = []
    stop = facts.listen(found.append)
    yield found
    stop()


def kinds(heard: list[Fact]) -> list[str]:
    return [fact.kind for fact in heard]


class Blocker:
    """A receiver that stands still until it is let go."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, item: int) -> None:
        self.entered.set()
        assert self.let_go.wait(PATIENCE_S)
        self.taken.append(item)


def test_items_arrive_in_order_and_flush_waits_for_them() -> None:
    taken: list[int] = []
    outbox = Outbox("box", taken.append)
    for number in range(1000):
        outbox.put(number)

    assert outbox.flush(PATIENCE_S)
    assert taken == list(range(1000))
    assert outbox.close(PATIENCE_S)


def test_a_receiver_that_would_end_the_thread_is_told_of_and_what_follows_arrives(heard: list[Fact]) -> None:
    taken: list[int] = []

    def deliver(item: int) -> None:
        if item == 0:
            raise SystemExit("planted")
        taken.append(item)

    outbox = Outbox("box", deliver)
    for number in range(3):
        outbox.put(number)

    assert outbox.flush(PATIENCE_S)
    assert taken == [1, 2]
    assert outbox.close(PATIENCE_S)
    assert kinds(heard) == ["thread_trouble"]


def test_flush_and_close_of_an_outbox_that_was_never_used_start_no_thread() -> None:
    outbox: Outbox[int] = Outbox("unused", print)
    before = threading.active_count()

    assert outbox.flush(0)
    assert outbox.close(0)
    assert threading.active_count() == before


def test_many_threads_lose_nothing() -> None:
    taken: list[tuple[int, int]] = []
    outbox = Outbox("box", taken.append, items_max=100_000)
    outbox.gather_s = 0

    def fill(who: int) -> None:
        for number in range(2000):
            outbox.put((who, number))
            if number % 500 == 0:
                assert outbox.flush(PATIENCE_S)

    threads = [threading.Thread(target=fill, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outbox.close(PATIENCE_S)
    assert sorted(taken) == [(who, number) for who in range(8) for number in range(2000)]


def test_every_item_of_many_short_bursts_is_delivered_without_a_flush() -> None:
    """A ring of the bell that got lost would leave the last item lying."""
    arrived = threading.Semaphore(0)
    outbox: Outbox[int] = Outbox("box", lambda _: arrived.release())
    outbox.gather_s = 0
    for number in range(3000):
        outbox.put(number)
        if number % 3 == 0:
            for _ in range(1 if number == 0 else 3):
                assert arrived.acquire(timeout=PATIENCE_S)
    outbox.close(PATIENCE_S)


class Sly(deque[int]):
    """A queue into which a thread puts an item at the very moment the outbox's thread has found it empty."""

    def __init__(self, outbox: Outbox[int], moment: int) -> None:
        super().__init__()
        self._outbox, self._moment = outbox, moment

    def __len__(self) -> int:
        found = super().__len__()
        if found == 0 and threading.current_thread() is self._outbox._thread:
            self._moment -= 1
            if self._moment == 0:
                self._outbox.put(2)
        return found


@pytest.mark.parametrize("moment", [1, 2])
def test_an_item_that_comes_as_the_thread_goes_to_sleep_wakes_it_again(moment: int) -> None:
    both = threading.Event()
    outbox: Outbox[int] = Outbox("box", lambda item: both.set() if item == 2 else None)
    outbox.gather_s = 0
    outbox._items = Sly(outbox, moment)
    outbox.put(1)

    assert both.wait(PATIENCE_S)
    outbox.close(PATIENCE_S)


def test_a_receiver_that_blocks_costs_drops_that_are_counted_and_reported_once(heard: list[Fact]) -> None:
    blocker = Blocker()
    outbox = Outbox("the slow one", blocker, items_max=10)
    outbox.put(0)
    assert blocker.entered.wait(PATIENCE_S)
    for number in range(1, 26):
        outbox.put(number)

    assert outbox.dropped == 15
    assert not outbox.flush(0)
    assert [fact.sentence for fact in heard if fact.kind == "outbox_trouble"] == [
        "the slow one is too slow; items that do not fit are dropped and counted"
    ]
    blocker.let_go.set()
    outbox.close(PATIENCE_S)
    assert blocker.taken == list(range(11))
    assert [fact.data["dropped"] for fact in heard if fact.kind == "outbox_dropped"] == [15]


def test_closing_gives_up_on_a_receiver_that_blocks_and_counts_what_was_left(heard: list[Fact]) -> None:
    blocker = Blocker()
    outbox = Outbox("stuck", blocker)
    outbox.put(0)
    assert blocker.entered.wait(PATIENCE_S)
    for number in range(1, 4):
        outbox.put(number)

    assert not outbox.close(0.01)
    assert outbox.dropped == 3
    assert "outbox_dropped" in kinds(heard)
    blocker.let_go.set()
    thread = outbox._thread
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert blocker.taken == [0]


def test_a_receiver_that_raises_is_reported_once_and_goes_on_being_called(heard: list[Fact]) -> None:
    taken: list[int] = []

    def refuse_odd(item: int) -> None:
        if item % 2:
            raise ValueError(f"{item} is odd")
        taken.append(item)

    outbox = Outbox("picky", refuse_odd)
    for number in range(10):
        outbox.put(number)

    assert outbox.flush(PATIENCE_S)
    assert outbox.failed == 5
    assert taken == [0, 2, 4, 6, 8]
    assert [fact.sentence for fact in heard] == [
        "picky raised ValueError('1 is odd'); it is still called, and further errors are not reported"
    ]
    outbox.close(PATIENCE_S)


def test_what_comes_after_closing_is_dropped_without_a_word_about_speed(heard: list[Fact]) -> None:
    outbox: Outbox[int] = Outbox("closed", print)
    outbox.close(PATIENCE_S)
    outbox.put(1)

    assert outbox.dropped == 1
    assert heard == []


def test_settling_follows_each_batch_before_its_flush_returns_and_finishing_comes_last() -> None:
    story: list[str] = []
    outbox: Outbox[str] = Outbox(
        "box", story.append, settle=lambda: story.append("settle"), finish=lambda: story.append("finish")
    )
    outbox.gather_s = PATIENCE_S  # only flush and close end the gathering
    outbox.put("a")
    outbox.put("b")
    assert outbox.flush(PATIENCE_S)
    assert story == ["a", "b", "settle"]
    outbox.put("c")
    assert outbox.close(PATIENCE_S)
    outbox.close(PATIENCE_S)

    assert story == ["a", "b", "settle", "c", "settle", "finish"]


def test_a_queue_that_is_half_full_is_emptied_without_waiting_for_more() -> None:
    arrived = threading.Event()
    outbox: Outbox[int] = Outbox("box", lambda _: arrived.set(), items_max=10)
    outbox.gather_s = PATIENCE_S * 2
    for number in range(7):
        outbox.put(number)

    assert arrived.wait(PATIENCE_S)
    outbox.close(PATIENCE_S)


def test_a_receiver_that_flushes_its_own_outbox_does_not_wait_for_itself() -> None:
    answers: list[bool] = []
    outbox: Outbox[int] = Outbox("box", lambda _: answers.append(outbox.flush(PATIENCE_S)))
    outbox.put(1)

    assert outbox.close(PATIENCE_S)
    assert answers == [False]


FORKED = """
    import os, sys, threading, warnings
    from holdfast.outbox import Outbox
    warnings.simplefilter("ignore", DeprecationWarning)
    entered, let_go = threading.Event(), threading.Event()
    def write(item):
        if item == "first":
            entered.set()
            let_go.wait()
        os.write(1, f"{item} by the {who}\\n".encode())
    who = "parent"
    outbox = Outbox("box", write)
    outbox.put("first")
    entered.wait()
    outbox.put("second")
    with outbox._lock:  # as if another thread held it at this moment
        pid = os.fork()
    if pid == 0:
        who = "child"
        outbox.put("third")
        delivered = outbox.flush(60)
        os._exit(0 if delivered else 1)
    _, status = os.waitpid(pid, 0)
    let_go.set()
    assert outbox.flush(60)
    sys.exit(status)
"""


def test_a_forked_child_delivers_its_own_items_and_leaves_the_parents_to_the_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["third by the child", "first by the parent", "second by the parent"]


def test_no_thread_to_be_had_is_reported_and_costs_only_the_items(
    heard: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    outbox: Outbox[int] = Outbox("box", print)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        outbox.put(1)
        assert not outbox.flush(PATIENCE_S)
        assert not outbox.close(PATIENCE_S)

    assert outbox.dropped == 1
    assert kinds(heard) == ["outbox_trouble", "outbox_dropped"]
