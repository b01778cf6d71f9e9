"""Any store of ours as a `torch.distributed.Store`, for process groups and everything else in torch that uses one.

torch's C++ code calls the methods below through pybind11. It looks some of them up by their C++ names, and it
keeps the timeout on its own side, so every wait here takes it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from holdfast.errors import StoreTimeoutError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from holdfast.store.api import Store

# torch before 2.7 knows no queues.
_QueueEmptyError: Any = getattr(dist, "QueueEmptyError", dist.DistStoreError)


class TorchStoreTimeoutError(StoreTimeoutError, dist.DistStoreError):
    """A key did not appear in time; programs written for torch's own stores know it as `DistStoreError`."""


class TorchQueueEmptyError(TorchStoreTimeoutError, _QueueEmptyError):  # type: ignore[misc, unused-ignore]
    """A queue is empty, and `block` is false."""


class TorchStore(dist.Store):  # type: ignore[misc, name-defined, unused-ignore]
    """A store of ours that torch can use; `store` is the one beneath it.

    A process group holds only the C++ half of its store and would find no method once the Python half is
    gone. So a `TorchStore` lives until `close` is called. Process groups that last as long as their
    process do not need to call it.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self._clones: list[TorchStore] = []
        super().set_timeout(store.timeout)
        _kept[id(self)] = self

    def close(self) -> None:
        """Release this object and its clones, once no process group uses them; the store beneath stays open."""
        for each in (self, *self._clones):
            _kept.pop(id(each), None)
        self._clones.clear()

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key, and replace an older one."""
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a key's value, waiting until it has one."""
        try:
            return self.store.get(key, self.timeout)
        except StoreTimeoutError as error:
            raise TorchStoreTimeoutError(str(error)) from None

    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key holds and return the sum."""
        return self.store.add(key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key that holds `expected`, or is missing while that is empty; return what is there."""
        return self.store.compare_set(key, expected, desired)

    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of a key's value."""
        self.store.append(key, value)

    def delete_key(self, key: str) -> bool:
        """Remove a key and say whether it was there."""
        return self.store.delete_key(key)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of all keys in their order, waiting until every one is there."""
        try:
            return self.store.multi_get(keys, self.timeout)
        except StoreTimeoutError as error:
            raise TorchStoreTimeoutError(str(error)) from None

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set all keys."""
        self.store.multi_set(keys, values)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return once every key is there."""
        try:
            self.store.wait(keys, self.timeout if timeout is None else timeout)
        except StoreTimeoutError as error:
            raise TorchStoreTimeoutError(str(error)) from None

    def check(self, keys: Sequence[str]) -> bool:
        """Say at once whether every key is there."""
        return self.store.check(keys)

    def num_keys(self) -> int:
        """Count the keys."""
        return self.store.num_keys()

    def list_keys(self) -> list[str]:
        """Name the keys, oldest first."""
        return self.store.list_keys()

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Add a value to the end of a queue."""
        self.store.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the oldest value of a queue; an empty one is waited for, unless `block` is false."""
        try:
            return self.store.queue_pop(key, block, self.timeout)
        except StoreTimeoutError as error:
            kind = TorchStoreTimeoutError if block else TorchQueueEmptyError
            raise kind(str(error)) from None

    def queue_len(self, key: str) -> int:
        """Count the values in a queue."""
        return self.store.queue_len(key)

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Return once `world_size` callers have called this."""
        try:
            self.store.barrier(key, world_size, self.timeout if timeout is None else timeout)
        except StoreTimeoutError as error:
            raise TorchStoreTimeoutError(str(error)) from None

    def clone(self) -> TorchStore:
        """Return another object for the same keys with a timeout of its own; it lives as long as this one."""
        copy = TorchStore(self.store.clone())
        copy.set_timeout(self.timeout)
        self._clones.append(copy)
        return copy

    def has_extended_api(self) -> bool:
        """Say that `append`, `multi_get` and `multi_set` work."""
        return True

    # The names that torch's C++ code looks up.
    deleteKey = delete_key
    getNumKeys = num_keys


#: The Python halves that C++ code may still call, by identity.
_kept: dict[int, TorchStore] = {}
