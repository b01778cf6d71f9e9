"""Signals as the agent takes them: left in the inbox, handlers put back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from holdfast.agent.inbox import Inbox
from holdfast.agent.machine import AgentEvent, Signalled, SignalPassing
from holdfast.agent.signals import handled, parse_signals
from holdfast.errors import SignalError, UsageError


@pytest.fixture
def inbox() -> Iterator[Inbox[AgentEvent]]:
    made: Inbox[AgentEvent] = Inbox()
    yield made
    made.close()


def test_names_are_read_with_and_without_sig() -> None:
    assert parse_signals("SIGTERM, usr1,") == [signal.SIGTERM, signal.SIGUSR1]


def test_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match="'SOON' is not a signal"):
        parse_signals("soon")


def test_a_signal_is_left_in_the_inbox(inbox: Inbox[AgentEvent]) -> None:
    with handled(inbox, "SIGUSR2", (signal.SIGUSR1,), lambda: False):
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)

        assert inbox.take() == Signalled(signal.SIGUSR2, "SIGUSR2")
        assert inbox.take() == SignalPassing(signal.SIGUSR1)


def test_a_signal_gets_out_of_code_that_blocks(inbox: Inbox[AgentEvent]) -> None:
    with (
        pytest.raises(SignalError, match="received SIGUSR2"),
        handled(inbox, "SIGUSR2", (), lambda: True),
    ):
        os.kill(os.getpid(), signal.SIGUSR2)


def test_handlers_are_put_back_as_they_were(inbox: Inbox[AgentEvent]) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with handled(inbox, "SIGUSR1", (signal.SIGUSR1,), lambda: False):
        assert signal.getsignal(signal.SIGUSR1) is not before

    assert signal.getsignal(signal.SIGUSR1) is before


def test_what_is_ignored_stays_ignored(inbox: Inbox[AgentEvent]) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with handled(inbox, "SIGUSR2", (), lambda: False):
            os.kill(os.getpid(), signal.SIGUSR2)

            assert inbox.take() is None
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_child_that_ends_as_handlers_are_put_back_leaves_no_traceback(inbox: Inbox[AgentEvent]) -> None:
    """Python prints one about a race if SIGCHLD reached another thread and has its default again by then."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with handled(inbox, None, (), lambda: False):
            pass
        after = signal.getsignal(signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert callable(after)
    assert after is not signal.SIG_DFL


def test_a_foreign_handler_of_sigchld_is_put_back(inbox: Inbox[AgentEvent]) -> None:
    def theirs(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGCHLD, theirs)
    try:
        with handled(inbox, None, (), lambda: False):
            assert signal.getsignal(signal.SIGCHLD) is not theirs

        assert signal.getsignal(signal.SIGCHLD) is theirs
    finally:
        signal.signal(signal.SIGCHLD, before)
