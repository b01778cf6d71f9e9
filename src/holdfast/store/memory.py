"""The memory store: the real machine behind a lock, for one process and for tests. No sockets."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from holdfast.machine import Tick
from holdfast.store.api import TIMEOUT_S
from holdfast.store.asking import AskingStore, failure
from holdfast.store.keys import StoreLimits
from holdfast.store.machine import Answer, Asked, PeerGone, SpaceDropped, StoreEvent, StoreMachine
from holdfast.store.messages import StoreFailed, StoreHello

if TYPE_CHECKING:
    from datetime import timedelta

#: Seats kept for the next callers; there are never more than callers at one time.
SEATS_IDLE_MAX = 64


class _Seat:
    """Where one caller waits for its answer; the machine's peer."""

    __slots__ = ("last_id", "ready", "reply")

    def __init__(self) -> None:
        self.last_id = 0
        self.reply: Any = None
        self.ready = threading.Event()


class _Hall:
    """The machine and its callers, shared by a store and its clones."""

    def __init__(self, machine: StoreMachine) -> None:
        self.machine = machine
        self.lock = threading.Lock()
        self.idle: list[_Seat] = []
        self.seats = 0

    def tell(self, event: StoreEvent) -> None:
        """Hand the machine an event and deliver the answers; the lock is held."""
        answers: list[Answer] = self.machine.handle(event, time.monotonic())
        for answer in answers:
            seat: _Seat = answer.peer  # type: ignore[assignment]
            seat.reply = answer.reply
            seat.ready.set()

    def seat(self) -> _Seat:
        """Return a free seat; the lock is held."""
        if self.idle:
            return self.idle.pop()
        self.seats += 1
        seat = _Seat()
        self.tell(Asked(seat, StoreHello(f"seat {self.seats}")))
        return seat


class MemoryStore(AskingStore):
    """A store that ends with its process; threads wait in it for each other as processes do in a real one."""

    def __init__(
        self,
        space: str = "",
        timeout: timedelta | float = TIMEOUT_S,
        *,
        limits: StoreLimits = StoreLimits(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(space, timeout)
        self._hall = _Hall(StoreMachine("memory", limits))

    def clone(self) -> MemoryStore:
        return self.within(self.space)

    def within(self, space: str) -> MemoryStore:
        """Return a store for the keys of another namespace."""
        other = MemoryStore.__new__(MemoryStore)
        AskingStore.__init__(other, space, self._timeout_s)
        other._hall = self._hall
        return other

    def snapshot(self) -> dict[str, Any]:
        """Describe how much is held and which callers wait for what."""
        with self._hall.lock:
            return self._hall.machine.snapshot()

    def drop(self, prefix: str = "") -> None:
        """Drop every namespace that starts with `prefix`; callers that wait in one get `UnavailableError`."""
        with self._hall.lock:
            self._hall.tell(SpaceDropped(prefix))

    def _ask(self, timeout_s: float, kind: Any, *fields: Any) -> Any:  # noqa: ARG002 - it is among the fields
        hall = self._hall
        with hall.lock:
            seat = hall.seat()
            seat.last_id += 1
            seat.reply = None
            seat.ready.clear()
            hall.tell(Asked(seat, kind(seat.last_id, self.space, *fields)))
        try:
            while not seat.ready.is_set():
                self._wait_for(seat)
        except BaseException:
            with hall.lock:
                hall.tell(PeerGone(seat))
            raise
        reply = seat.reply
        with hall.lock:
            if len(hall.idle) < SEATS_IDLE_MAX:
                hall.idle.append(seat)
            else:
                hall.tell(PeerGone(seat))
        if type(reply) is StoreFailed:
            raise failure(reply)
        return reply

    def _wait_for(self, seat: _Seat) -> None:
        """Sleep until the seat is answered or a request's time is up, which the machine is then told."""
        hall = self._hall
        with hall.lock:
            wakeup = hall.machine.wakeup()
            pause_s = None if wakeup is None else max(wakeup - time.monotonic(), 0.0)
        if not seat.ready.wait(pause_s):
            with hall.lock:
                hall.tell(Tick())
