"""The agent's signals: their handlers only put an item into the inbox."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.agent.inbox import Inbox
from holdfast.agent.machine import AgentEvent, Signalled, SignalPassing
from holdfast.errors import SignalError, UsageError

SIGNALS_VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
SIGNALS_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


def parse_signals(text: str) -> list[signal.Signals]:
    """Read names of signals separated by commas, with or without SIG."""
    numbers: list[signal.Signals] = []
    for name in (part.strip().upper() for part in text.split(",")):
        if name:
            try:
                numbers.append(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
            except KeyError:
                raise UsageError(f"'{name}' is not a signal; write names such as SIGTERM,SIGUSR1") from None
    return numbers


@contextmanager
def handled(
    inbox: Inbox[AgentEvent],
    ending: str | None,
    forwarded: tuple[signal.Signals, ...],
    is_blocking: Callable[[], bool],
) -> Iterator[None]:
    """While this lasts, signals are put into the inbox; only the main thread can set that up.

    `ending` names those that end the agent; None means those of the environment, or the default. `is_blocking`
    says whether a handler of another package blocks the loop: then only an exception can end it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_ending(number: int, _: object) -> None:
        which = signal.Signals(number)
        if is_blocking():
            raise SignalError(f"process {os.getpid()} received {which.name}", which)
        inbox.put(Signalled(number, which.name), urgent=True)

    def on_forwarded(number: int, _: object) -> None:
        inbox.put(SignalPassing(number))

    previous: dict[signal.Signals, Any] = {}

    def take_over(number: signal.Signals, handler: Callable[[int, object], None]) -> None:
        previous.setdefault(number, signal.getsignal(number))  # noted first: the new one may be called at once
        signal.signal(number, handler)

    numbers = parse_signals(ending or os.environ.get(SIGNALS_VARIABLE, SIGNALS_DEFAULT))
    try:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                take_over(number, on_ending)
        for number in forwarded:
            take_over(number, on_forwarded)
        # A worker that is stopped says so by this signal alone; it need only end the wait.
        take_over(signal.SIGCHLD, _end_wait)
        with inbox.woken_by_signals():
            yield
    finally:
        # An empty handler does what SIGCHLD's default does. The default is not put back: if a child ended at that very
        # moment, Python would print a traceback about a race.
        if previous.get(signal.SIGCHLD) is signal.SIG_DFL:
            del previous[signal.SIGCHLD]
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end_wait(number: int, frame: object) -> None:
    """Do nothing: that the signal came ends the wait."""
