"""Notices: this worker must leave soon, and may save a checkpoint before that.

A training loop checks between two steps:

    with Notices() as notices:
        for step in ...:
            ...
            if notice := notices.pending():
                checkpoints.save(step, state)
                checkpoints.wait(notice.seconds_left(time.time()))
                break

Signals reach one worker before another. If all must save the same step, use the loop's own vote:
`run.stop(notice.reason)` ends the training of all workers after the same step.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.quantities import to_seconds

if TYPE_CHECKING:
    from datetime import timedelta

#: The signals that schedulers and our agents send before they kill a worker.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
#: When the job's time is up, in seconds since the epoch; set by Slurm.
END_VARIABLE = "SLURM_JOB_END_TIME"
#: How long before the end of the job's time a notice is given.
MARGIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Notice:
    """Why this worker must leave, and the deadline on this host's wall clock, if that is known."""

    reason: str
    deadline: float | None = None

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the deadline; None if there is none."""
        return None if self.deadline is None else max(self.deadline - now, 0.0)


class Notices:
    """Watches for the signals and the time limit that announce the end.

    While it is open, `signals` do not end the process; `close` restores their handlers. It must be opened by the main
    thread, unless `signals` is empty.
    """

    def __init__(
        self,
        signals: Sequence[signal.Signals] = SIGNALS,
        *,
        margin: float | timedelta = MARGIN_S,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._signals = tuple(signals)
        self._margin_s = to_seconds(margin)
        self._end = _end_of_job(os.environ if environ is None else environ)
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def pending(self) -> Notice | None:
        """Return the notice that was given, or None; costs next to nothing."""
        if self._received is not None:
            return Notice(f"{self._received.name} was received", self._end)
        if self._end is not None and time.time() >= self._end - self._margin_s:
            return Notice(f"the job's time is up in {max(self._end - time.time(), 0):.0f} s", self._end)
        return None

    def __enter__(self) -> Notices:
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise UsageError("only the main thread can listen for signals: open Notices() there")
        for number in self._signals:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._received = signal.Signals(number)


def _end_of_job(environ: Mapping[str, str]) -> float | None:
    text = environ.get(END_VARIABLE, "")
    try:
        return float(text) if text else None
    except ValueError:
        return None
