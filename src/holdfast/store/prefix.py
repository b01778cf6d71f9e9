"""The prefix store: a part of another store, for programs that must not share keys."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.store.api import Store

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrefixStore(Store):
    """A part of another store: every key is `prefix/key` there, and no other key is visible here.

    Its timeout is that of the underlying store until it gets its own.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        self.prefix = prefix
        self.underlying_store = store
        self._start = f"{prefix}/"
        self._own_timeout: timedelta | float | None = None

    @property
    def timeout(self) -> timedelta:
        return self.underlying_store.timeout if self._own_timeout is None else timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Change how long calls through this prefix wait; the underlying store keeps its own timeout."""
        super().set_timeout(timeout)
        self._own_timeout = self._timeout_s

    def set(self, key: str, value: str | bytes) -> None:
        self.underlying_store.set(self._start + key, value)

    def get(self, key: str, timeout: timedelta | float | None = None) -> bytes:
        return self.underlying_store.get(self._start + key, self._or_own(timeout))

    def add(self, key: str, amount: int) -> int:
        return self.underlying_store.add(self._start + key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self.underlying_store.compare_set(self._start + key, expected, desired)

    def append(self, key: str, value: str | bytes) -> None:
        self.underlying_store.append(self._start + key, value)

    def delete_key(self, key: str) -> bool:
        return self.underlying_store.delete_key(self._start + key)

    def multi_get(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> list[bytes]:
        return self.underlying_store.multi_get(self._joined(keys), self._or_own(timeout))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self.underlying_store.multi_set(self._joined(keys), values)

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        self.underlying_store.wait(self._joined(keys), self._or_own(timeout))

    def check(self, keys: Sequence[str]) -> bool:
        return self.underlying_store.check(self._joined(keys))

    def num_keys(self, prefix: str = "") -> int:
        return self.underlying_store.num_keys(self._start + prefix)

    def list_keys(self, prefix: str = "") -> list[str]:
        return [key[len(self._start) :] for key in self.underlying_store.list_keys(self._start + prefix)]

    def queue_push(self, key: str, value: str | bytes) -> None:
        self.underlying_store.queue_push(self._start + key, value)

    def queue_pop(self, key: str, block: bool = True, timeout: timedelta | float | None = None) -> bytes:
        return self.underlying_store.queue_pop(self._start + key, block, self._or_own(timeout))

    def queue_len(self, key: str) -> int:
        return self.underlying_store.queue_len(self._start + key)

    def clone(self) -> PrefixStore:
        """Return the same prefix over a clone of the underlying store."""
        copy = PrefixStore(self.prefix, self.underlying_store.clone())
        if self._own_timeout is not None:
            copy.set_timeout(self._own_timeout)
        return copy

    def _joined(self, keys: Sequence[str]) -> list[str]:
        start = self._start
        return [start + key for key in keys]

    def _or_own(self, timeout: timedelta | float | None) -> timedelta | float | None:
        return self._own_timeout if timeout is None else timeout
