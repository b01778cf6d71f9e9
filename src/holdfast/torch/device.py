"""Waiting for a device while watching the round.

A collective of NCCL returns before it has done its work, and its `wait` makes only the stream wait: what is queued
behind it, the optimizer too, would run on sums that never arrived when a peer dies. So the host waits here until the
device has finished, and stops waiting the moment the round is over.

The wait uses a stream of its own. The stream that a program computes on is then never stuck behind a
collective that will not end, and can continue in the next round while the old one is still being aborted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from holdfast.errors import RoundOverError
from holdfast.facts import Fact, facts
from holdfast.torch.randomness import cuda_in_use
from holdfast.workers.linux import sleep_exactly
from holdfast.workers.template_standby import load_kernels

_cuda: Any = torch.cuda  # its classes are untyped

#: How long the host sleeps between two looks at the device: a fiftieth of the time it has waited, within these limits.
LOOK_S_MIN, LOOK_S_MAX = 20e-6, 1e-3
#: Within these parts of the time that waits have taken, and no longer than this, the end is near, or due: then the host
#: does not sleep at all.
NEAR, DUE = 0.15, 0.02
NEAR_S_MAX, DUE_S_MAX = 20e-3, 1e-3
#: A shorter wait is believed slowly: not every step waits where the longest wait is.
FADES = 0.9


class Patience:
    """Waits for events of the device with an eye on the round, and learns how long that usually takes.

    The device stands still between the end of an event and the moment that the host sees it. Steps take about equally
    long, so the host looks often when the end is due, and rarely before: no processor is kept busy.
    """

    def __init__(self, over: Callable[[], str | None], timeout_s: float) -> None:
        self._over = over
        self._timeout_s = timeout_s
        self._usual_s = 0.0
        sleep_exactly()

    def wait(self, event: Any) -> None:
        """Wait until the device has come to an event; raises `RoundOverError` if the round or the time ends first."""
        began = time.monotonic()
        waited_s = 0.0
        while not event.query():
            reason = self._over()
            if reason is not None:
                raise RoundOverError(reason)
            waited_s = time.monotonic() - began
            if waited_s > self._timeout_s:
                raise RoundOverError(f"the device has not finished a collective within {self._timeout_s:g} s")
            time.sleep(self.pause_s(waited_s))
        if waited_s:
            self._usual_s = max(waited_s, self._usual_s * FADES)

    def pause_s(self, waited_s: float) -> float:
        """Return how long to sleep before the next look."""
        away_s = abs(waited_s - self._usual_s)
        if away_s <= min(NEAR * self._usual_s, NEAR_S_MAX):
            return LOOK_S_MIN if away_s > min(DUE * self._usual_s, DUE_S_MAX) else 0.0
        return min(max(waited_s / 50, LOOK_S_MIN), LOOK_S_MAX)


def is_lost() -> bool:
    """Whether this process's GPU has failed, after an assert in a kernel for example: only a new process can use it."""
    if not cuda_in_use():
        return False
    try:
        _cuda.current_stream().query()
    except RuntimeError:
        return True
    return False


def warm_up() -> None:
    """Load what the first step and the first communicator of a process load, while no other worker waits for it."""
    try:
        load_kernels(torch, with_nccl=True)
    except RuntimeError as error:  # if it matters, the program's own step fails in the same way
        facts.publish(Fact("warm_up_failed", f"the GPU could not be warmed up: {error}"))


class DeviceSums:
    """Sums tensors over a round's group so that the host knows when a sum is complete; `reduce` begins a sum."""

    def __init__(self, reduce: Callable[[torch.Tensor], Any], over: Callable[[], str | None], timeout_s: float) -> None:
        self._reduce = reduce
        self._over = over
        self._patience = Patience(over, timeout_s)
        self._side: Any = _cuda.Stream()
        #: Memory that a running collective may still write to; it must not be reused before the collective has ended.
        self.in_flight: list[torch.Tensor] = []
        #: How many sums were begun, and how many of these, in their order, are known to be complete.
        self._begun = self._complete = 0

    def begin(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to sum a tensor over all workers, in place; what is returned waits for the end."""
        if (reason := self._over()) is not None:
            raise RoundOverError(reason)  # a group that is being aborted would not let go of us until that is done
        work = self._reduce(tensor)
        self.in_flight.append(tensor)
        self._begun = number = self._begun + 1

        def wait() -> None:
            if number > self._complete:  # else a later one was waited for, and sums end in their order
                self.wait(work)
                self._complete = number
            self.in_flight = [each for each in self.in_flight if each is not tensor]

        return wait

    def wait(self, work: Any) -> None:
        """Wait until a collective has done its work."""
        with torch.cuda.stream(self._side):
            work.wait()
        done = _cuda.Event()
        done.record(self._side)
        self._patience.wait(done)
        torch.cuda.current_stream().wait_event(done)

    def settle(self) -> None:
        """Wait until the device has finished all queued work, including collectives of other code."""
        done = _cuda.Event()
        done.record()
        self._patience.wait(done)
