"""The stop machine: how a gang of workers is stopped. Pure.

It decides which workers get a signal, and when SIGKILL follows. A stop begins with the signal that was asked for
(normally SIGTERM) to every living worker and all below it; each that is still there when the grace time is over
gets SIGKILL; once no worker lives, processes that they left behind (strays) are killed without grace, since nothing
is there to look after it.

The rules:
- A worker that has ended is never signalled.
- Every wait has an end. A worker that survives SIGKILL hangs in the kernel (state D): after `kill_timeout_s`
  it is reported as stuck and the stop ends without it.
- A harder request wins over a softer one that is under way; a softer one changes nothing.
- The end of a stop, good or bad, is described in a sentence.

It does not know processes, signals or clocks. The driver finds strays; it answers `KillStrays`
with `StraysGone`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.machine import Tick

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Signals are numbers here; this one is the same on every system.
SIGKILL = 9
KILL_TIMEOUT_S = 5.0


class StopState(enum.Enum):
    """How far the stop has come."""

    RUNNING = "running"
    TERMINATING = "terminating"  #: signalled, grace time running
    KILLING = "killing"  #: SIGKILL sent, the kernel should end them any moment
    SWEEPING = "sweeping"  #: no worker left that can end; strays are being killed
    DONE = "done"


#: States in which workers have been signalled by us.
STOPPING_STATES = frozenset({StopState.TERMINATING, StopState.KILLING, StopState.SWEEPING})


class StopAsked(Struct, frozen=True):
    """End the gang: this signal, then SIGKILL after the grace time. A grace of 0 kills at once."""

    signal: int
    grace_s: float


class WorkerGone(Struct, frozen=True):
    """A worker has ended, for any reason."""

    local_rank: int


class StraysGone(Struct, frozen=True):
    """No descendant of the gang is left."""


class SignalWorker(Struct, frozen=True):
    """Send this signal to the worker, its process group and all its descendants."""

    local_rank: int
    signal: int


class KillStrays(Struct, frozen=True):
    """Kill all processes that the workers have left behind; ends with `StraysGone`."""


class StopEnded(Struct, frozen=True):
    """The stop is over. `stuck` are workers that not even SIGKILL could end in time."""

    stuck: tuple[int, ...]
    sentence: str


StopEvent = StopAsked | WorkerGone | StraysGone | Tick
StopEffect = SignalWorker | KillStrays | StopEnded


class StopMachine:
    """Decides how one gang is stopped; see the top of this module."""

    def __init__(self, local_ranks: Iterable[int], kill_timeout_s: float = KILL_TIMEOUT_S) -> None:
        self.state = StopState.RUNNING
        self.alive: list[int] = sorted(local_ranks)
        self._kill_timeout_s = kill_timeout_s
        self._deadline: float | None = None  # set exactly in TERMINATING, KILLING and SWEEPING
        self._killed: tuple[int, ...] = ()  # the workers that needed SIGKILL, for the sentence

    def handle(self, event: StopEvent, now: float) -> list[StopEffect]:
        """Decide what the event means for the stop."""
        match event:
            case StopAsked(number, grace_s):
                return self._stop(number, grace_s, now)
            case WorkerGone(local_rank):
                if local_rank in self.alive:
                    self.alive.remove(local_rank)
                if self.state in (StopState.TERMINATING, StopState.KILLING) and not self.alive:
                    return self._sweep(now)
                return []
            case StraysGone():
                return self._end("") if self.state is StopState.SWEEPING else []
            case Tick():
                return self._tick(now)

    def _stop(self, number: int, grace_s: float, now: float) -> list[StopEffect]:
        if self.state in (StopState.DONE, StopState.SWEEPING, StopState.KILLING):
            return []
        if not self.alive:
            return self._sweep(now)  # RUNNING, TERMINATING -> SWEEPING
        if number == SIGKILL or grace_s <= 0:
            return self._kill(now)  # RUNNING, TERMINATING -> KILLING
        deadline = now + grace_s
        if self.state is StopState.RUNNING:  # RUNNING -> TERMINATING
            self.state, self._deadline = StopState.TERMINATING, deadline
            return [SignalWorker(rank, number) for rank in self.alive]
        assert self._deadline is not None
        self._deadline = min(self._deadline, deadline)
        return []

    def _tick(self, now: float) -> list[StopEffect]:
        if self._deadline is None or now < self._deadline:
            return []
        match self.state:
            case StopState.TERMINATING:
                return self._kill(now)
            case StopState.KILLING:
                return self._sweep(now)
            case _:
                return self._end("some processes that the workers had started could not be ended")

    def _kill(self, now: float) -> list[StopEffect]:
        self.state, self._deadline = StopState.KILLING, now + self._kill_timeout_s
        self._killed = tuple(self.alive)
        return [SignalWorker(rank, SIGKILL) for rank in self.alive]

    def _sweep(self, now: float) -> list[StopEffect]:
        self.state, self._deadline = StopState.SWEEPING, now + self._kill_timeout_s
        return [KillStrays()]

    def _end(self, trouble: str) -> list[StopEffect]:
        self.state, self._deadline = StopState.DONE, None
        return [StopEnded(tuple(self.alive), self._sentence(trouble))]

    def _sentence(self, trouble: str) -> str:
        if self.alive:
            ranks = ", ".join(map(str, self.alive))
            return f"local rank {ranks} hangs in the kernel and outlived SIGKILL; going on without it"
        if trouble:
            return trouble
        if self._killed:
            return f"local rank {', '.join(map(str, self._killed))} did not end in time and was killed"
        return "all workers have ended"

    def wakeup(self) -> float | None:
        """Say when the stop gets harder, or None while nothing is under way."""
        return self._deadline

    def check(self) -> None:
        """Assert that state, deadline and the living agree."""
        assert (self._deadline is not None) == (self.state in STOPPING_STATES)
        assert self.alive == sorted(set(self.alive))
        if self.state is StopState.TERMINATING:
            assert self.alive, "a stop without living workers is sweeping or done"

    def snapshot(self) -> dict[str, Any]:
        """Describe the stop as plain data."""
        return {"state": self.state.value, "alive": list(self.alive), "deadline": self._deadline}
