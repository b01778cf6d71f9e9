"""Threads that never die silently."""

from __future__ import annotations

import threading

from holdfast.facts import ERROR, Fact, facts
from holdfast.threads import start_thread


def test_an_unexpected_exception_is_told_with_its_traceback_and_handed_on() -> None:
    heard: list[Fact] = []
    died: list[BaseException] = []
    stop = facts.listen(heard.append)

    def fail() -> None:
        raise LookupError("planted")

    start_thread(fail, "holdfast-test", died.append).join(240)
    stop()

    [fact] = [fact for fact in heard if fact.kind == "thread_trouble"]
    assert fact.level == ERROR
    assert fact.data["thread"] == "holdfast-test"
    assert "LookupError: planted" in fact.sentence
    assert "in fail" in fact.data["traceback"]
    assert isinstance(died[0], LookupError)


def test_a_thread_that_ends_well_says_nothing() -> None:
    heard: list[Fact] = []
    stop = facts.listen(heard.append)
    done = threading.Event()

    thread = start_thread(done.set, "holdfast-test")
    thread.join(240)
    stop()

    assert done.is_set()
    assert thread.daemon
    assert heard == []
