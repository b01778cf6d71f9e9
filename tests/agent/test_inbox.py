"""The inbox: whatever happens, on whichever thread, ends the loop's wait."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from holdfast.agent.inbox import Inbox


def test_an_item_left_by_another_thread_ends_the_wait() -> None:
    inbox: Inbox[str] = Inbox()

    other = threading.Thread(target=inbox.put, args=("here",))
    other.start()
    while (item := inbox.take()) is None:
        inbox.wait(60)
    other.join()  # it may still be waking us

    assert item == "here"
    inbox.close()


def test_a_signal_that_another_thread_is_handed_ends_the_wait_of_the_main_thread() -> None:
    """The kernel is free to choose; here it has no choice, since the main thread blocks the signal."""
    inbox: Inbox[str] = Inbox()
    told: list[int] = []
    blocked, done = threading.Event(), threading.Event()

    def other() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        blocked.wait()
        os.kill(os.getpid(), signal.SIGUSR2)
        done.wait()

    before = signal.signal(signal.SIGUSR2, lambda number, _: told.append(number))
    thread = threading.Thread(target=other)
    try:
        thread.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        with inbox.woken_by_signals():
            blocked.set()
            while not told:
                inbox.wait(60)
    finally:
        done.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR2, before)
        inbox.close()

    assert told == [signal.SIGUSR2]


def test_afterwards_signals_are_as_they_were() -> None:
    inbox: Inbox[str] = Inbox()
    reader, writer = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(writer)

    with inbox.woken_by_signals():
        pass

    assert signal.set_wakeup_fd(before) == writer
    os.close(reader)
    os.close(writer)
    inbox.close()


@pytest.fixture(autouse=True)
def _main_thread() -> None:
    assert threading.current_thread() is threading.main_thread()
