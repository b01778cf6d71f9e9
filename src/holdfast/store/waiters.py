"""The waiting requests of a store: for which keys, and until when. Pure.

A waiter is registered under every key that it misses, in the table of its namespace, and in a heap by
deadline. Waking one costs one step for each key that it waits for; one that leaves early stays in the heap
until it reaches the front or such leftovers outnumber the others, so the heap costs O(log n) and is never
larger than twice the number of waiters.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from holdfast.store.messages import StoreQueuePop

if TYPE_CHECKING:
    from holdfast.store.channels import Channel
    from holdfast.store.keys import Space
    from holdfast.store.messages import Waiting

#: How many leftovers the heap may always hold.
_LEFTOVERS = 64


class Waiter:
    """One waiting request. `missing` are the keys under which it is registered."""

    __slots__ = ("channel", "deadline", "done", "missing", "request", "serial", "space")

    def __init__(self, serial: int, channel: Channel, request: Waiting, space: Space, deadline: float) -> None:
        self.serial = serial
        self.channel = channel
        self.request = request
        self.space = space
        self.deadline = deadline
        self.missing: dict[str, None] = {}
        self.done = False

    def __lt__(self, other: Waiter) -> bool:
        return (self.deadline, self.serial) < (other.deadline, other.serial)

    def table(self) -> dict[str, dict[int, Waiter]]:
        """Return the table that this waiter is registered in."""
        return self.space.popping if type(self.request) is StoreQueuePop else self.space.waiting


class Waiters:
    """All waiting requests."""

    def __init__(self) -> None:
        self.count = 0
        #: How many registrations there are: a request that misses three keys has three.
        self.keys = 0
        self._serial = 0
        self._heap: list[Waiter] = []

    def add(self, channel: Channel, request: Waiting, space: Space, missing: list[str], deadline: float) -> None:
        """Make a request wait for the keys it misses."""
        self._serial += 1
        waiter = Waiter(self._serial, channel, request, space, deadline)
        channel.waiter = waiter
        self.count += 1
        heapq.heappush(self._heap, waiter)
        self.register(waiter, missing)

    def register(self, waiter: Waiter, keys: list[str]) -> None:
        """Register a waiter under these keys."""
        table = waiter.table()
        for key in keys:
            waiter.missing[key] = None
            table.setdefault(key, {})[waiter.serial] = waiter
        self.keys += len(keys)

    def take(self, space: Space, key: str) -> list[Waiter]:
        """Return the waiters that missed only this key, in order of arrival; they are still to be answered."""
        waiters = space.waiting.pop(key)
        self.keys -= len(waiters)
        for waiter in waiters.values():
            del waiter.missing[key]
        return [waiter for waiter in waiters.values() if not waiter.missing]

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiting request."""
        table = waiter.table()
        for key in waiter.missing:
            waiters = table[key]
            del waiters[waiter.serial]
            if not waiters:
                del table[key]
        self.keys -= len(waiter.missing)
        waiter.missing = {}
        waiter.done = True
        waiter.channel.waiter = None
        self.count -= 1
        heap = self._heap
        while heap and heap[0].done:
            heapq.heappop(heap)
        if len(heap) > 2 * self.count + _LEFTOVERS:
            self._heap = [each for each in heap if not each.done]
            heapq.heapify(self._heap)

    def first(self) -> Waiter | None:
        """Return the waiter whose time is up first."""
        return self._heap[0] if self._heap else None

    @staticmethod
    def within(space: Space) -> list[Waiter]:
        """Return all waiters in a namespace, in order of arrival."""
        waiters: dict[int, Waiter] = {}
        for by_serial in (*space.waiting.values(), *space.popping.values()):
            waiters.update(by_serial)
        return [waiters[serial] for serial in sorted(waiters)]

    def check(self, spaces: list[Space]) -> None:
        """Assert that tables, heap and counts agree."""
        if not spaces and not self._heap:
            assert self.count == self.keys == 0
            return
        waiters = {waiter.serial: waiter for space in spaces for waiter in self.within(space)}
        for space in spaces:
            assert not any(key in space.queues for key in space.popping), (
                "a request waits for a queue that is not empty"
            )
        for serial, waiter in waiters.items():
            assert waiter.channel.waiter is waiter
            assert all(waiter.table()[key][serial] is waiter for key in waiter.missing)
        registered = sum(
            len(by_serial)
            for space in spaces
            for table in (space.waiting, space.popping)
            for by_serial in table.values()
        )
        assert self.count == len(waiters)
        assert self.keys == registered == sum(len(waiter.missing) for waiter in waiters.values())
        assert {waiter.serial: waiter for waiter in self._heap if not waiter.done} == waiters
        assert len(self._heap) <= 2 * self.count + _LEFTOVERS
        assert not self._heap or not self._heap[0].done
