"""The content of a store: namespaces of keys and queues, counted, within limits. Pure.

A request beyond a limit is refused with a sentence that names the limit; nothing here raises or waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from holdfast.store.messages import REQUEST_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How much clients may make the store hold."""

    #: Also the limit for the name of a namespace.
    key_bytes_max: int = 4096
    value_bytes_max: int = REQUEST_BYTES_MAX
    #: Keys, values and queued values of all namespaces together.
    total_bytes_max: int = 1024 * 1024 * 1024
    #: Keys and queued values of all namespaces together.
    keys_max: int = 4_000_000
    #: Keys being waited for, counted once for each question that waits.
    waiters_max: int = 1_000_000
    wait_s_max: float = 30 * 24 * 3600.0
    #: What one answer may hold, so that it fits a frame.
    reply_bytes_max: int = REQUEST_BYTES_MAX
    #: Channels without a connection whose last write is still remembered.
    channels_max: int = 4096


class Space:
    """One namespace. None of its tables ever holds an empty entry.

    `waiting` and `popping` belong to the machine: the requests that wait for a key or a queue, by key and then
    by serial, so that the first is answered first.
    """

    __slots__ = ("name", "popping", "queues", "values", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {}
        self.waiting: dict[str, dict[int, Any]] = {}
        self.popping: dict[str, dict[int, Any]] = {}

    def size(self) -> tuple[int, int]:
        """Count the keys and queued values, and their bytes."""
        queued = [(key, value) for key, queue in self.queues.items() for value in queue]
        held = [*self.values.items(), *queued]
        return len(held), sum(text_bytes(key) + len(value) for key, value in held)


class Keys:
    """Every namespace of a store. An empty one in which no request waits does not exist."""

    def __init__(self, limits: StoreLimits) -> None:
        self.limits = limits
        self.spaces: dict[str, Space] = {}
        #: Keys and queued values of all namespaces, and their bytes with those of the keys.
        self.entries = 0
        self.bytes = 0

    def open(self, name: str) -> Space:
        """Return a namespace, made if it is missing; the caller puts something into it at once."""
        space = self.spaces.get(name)
        if space is None:
            space = self.spaces[name] = Space(name)
        return space

    def tidy(self, space: Space) -> None:
        """Forget a namespace that is empty and in which no request waits."""
        if not (space.values or space.waiting or space.queues or space.popping):
            self.spaces.pop(space.name, None)

    def value(self, name: str, key: str) -> bytes | None:
        """Return a value if it is there."""
        space = self.spaces.get(name)
        return None if space is None else space.values.get(key)

    def put(self, name: str, key: str, value: bytes) -> str | None:
        """Store a value, or return which limit forbids it."""
        old = self.value(name, key)
        growth = len(value) - len(old) if old is not None else len(value) + text_bytes(key)
        refusal = self._no_room(name, key, len(value), growth, is_new=old is None)
        if refusal is not None:
            return refusal
        self.open(name).values[key] = value
        self.bytes += growth
        if old is None:
            self.entries += 1
        return None

    def put_all(self, name: str, keys: list[str], values: list[bytes]) -> str | None:
        """Store all values, or none and return which limit forbids it; of a key given twice the last value counts."""
        batch = dict(zip(keys, values, strict=True))
        if not batch:
            return None
        space = self.spaces.get(name)
        held: dict[str, bytes] = {} if space is None else space.values
        new = [key for key in batch if key not in held]
        replaced = sum(map(len, filter(None, map(held.get, batch))))
        growth = sum(map(len, batch.values())) + text_bytes("".join(new)) - replaced
        refusal = self._no_room_for_all(name, batch, new, growth)
        if refusal is not None:
            return refusal
        self.open(name).values.update(batch)
        self.entries += len(new)
        self.bytes += growth
        return None

    def delete(self, name: str, key: str) -> bool:
        """Remove a value; return whether it was there."""
        space = self.spaces.get(name)
        value = None if space is None else space.values.pop(key, None)
        if space is None or value is None:
            return False
        self.entries -= 1
        self.bytes -= text_bytes(key) + len(value)
        self.tidy(space)
        return True

    def push(self, name: str, key: str, value: bytes) -> str | None:
        """Add to the end of a queue, or return which limit forbids it."""
        size = text_bytes(key) + len(value)
        refusal = self._no_room(name, key, len(value), size, is_new=True)
        if refusal is not None:
            return refusal
        self.open(name).queues.setdefault(key, deque()).append(value)
        self.entries += 1
        self.bytes += size
        return None

    def pop(self, space: Space, key: str) -> bytes:
        """Take the oldest value of a queue that is not empty."""
        queue = space.queues[key]
        value = queue.popleft()
        if not queue:
            del space.queues[key]
        self.entries -= 1
        self.bytes -= text_bytes(key) + len(value)
        self.tidy(space)
        return value

    def empty(self, space: Space) -> None:
        """Remove everything from a namespace, but not the requests that wait in it."""
        entries, size = space.size()
        self.entries -= entries
        self.bytes -= size
        space.values.clear()
        space.queues.clear()
        self.tidy(space)

    def check(self) -> None:
        """Assert that everything is counted and nothing empty is kept."""
        if not self.spaces:
            assert self.entries == self.bytes == 0
            return
        for name, space in self.spaces.items():
            assert name == space.name
            assert space.values or space.queues or space.waiting or space.popping, f"{name!r} is empty"
            assert all(space.queues.values())
            assert all(space.waiting.values())
            assert all(space.popping.values())
        sizes = [space.size() for space in self.spaces.values()]
        assert self.entries == sum(entries for entries, _ in sizes)
        assert self.bytes == sum(size for _, size in sizes)
        assert self.entries <= self.limits.keys_max
        assert self.bytes <= self.limits.total_bytes_max

    # -- limits ---------------------------------------------------------------------------------------------

    def key_too_long(self, key: str) -> str | None:
        """Return a sentence if a key, or the name of a namespace, is over its limit."""
        size, limit = text_bytes(key), self.limits.key_bytes_max
        return f"the key '{shown(key)}' has {size} bytes, over the limit of {limit}" if size > limit else None

    def _no_room(self, name: str, key: str, value_bytes: int, growth: int, *, is_new: bool) -> str | None:
        limits = self.limits
        if value_bytes > limits.value_bytes_max:
            limit = limits.value_bytes_max
            return f"the value for '{shown(key)}' has {value_bytes} bytes, over the limit of {limit}"
        if is_new:
            if len(key) + len(name) > limits.key_bytes_max // 4:  # a character has four bytes at most
                refusal = self.key_too_long(key) or self.key_too_long(name)
                if refusal is not None:
                    return refusal
            if self.entries >= limits.keys_max:
                return f"the store holds {self.entries} keys and queued values, which is its limit"
        return self._too_much(growth) if growth > 0 else None

    def _no_room_for_all(self, name: str, batch: dict[str, bytes], new: list[str], growth: int) -> str | None:
        limits = self.limits
        if max(map(len, batch.values())) > limits.value_bytes_max:
            largest = max(batch, key=lambda key: len(batch[key]))
            return self._no_room(name, largest, len(batch[largest]), 0, is_new=False)
        if new and max(map(len, new)) + len(name) > limits.key_bytes_max // 4:
            refusal = self.key_too_long(max(new, key=text_bytes)) or self.key_too_long(name)
            if refusal is not None:
                return refusal
        if self.entries + len(new) > limits.keys_max:
            held = f"the store holds {self.entries} keys and queued values"
            return f"{held} and has no room for {len(new)} more: its limit is {limits.keys_max}"
        return self._too_much(growth) if growth > 0 else None

    def _too_much(self, growth: int) -> str | None:
        limit = self.limits.total_bytes_max
        if self.bytes + growth <= limit:
            return None
        return f"the store holds {self.bytes} bytes and has no room for {growth} more: its limit is {limit}"


def text_bytes(text: str) -> int:
    """Count the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def shown(key: str) -> str:
    """Return a key as a sentence shows it."""
    return key if len(key) <= 64 else f"{key[:61]}..."
