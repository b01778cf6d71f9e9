"""The interface of every store: shared keys, with the method names of `torch.distributed.Store`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.quantities import to_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

#: torch's default as well.
TIMEOUT_S = 300.0


class Store(ABC):
    """Keys shared by the processes of a run; values are bytes, and text given for one is stored as UTF-8.

    A call that waits for a key raises `StoreTimeoutError` after the store's `timeout`, or after its own: a
    `timedelta` or seconds, where 0 means not to wait at all. Every method may be called from any thread.
    """

    def __init__(self, timeout: timedelta | float = TIMEOUT_S) -> None:
        self._timeout_s = to_seconds(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long a call waits by default."""
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Change how long calls on this object wait by default."""
        self._timeout_s = to_seconds(timeout)

    # -- one key --------------------------------------------------------------------------------------------

    @abstractmethod
    def set(self, key: str, value: str | bytes) -> None:
        """Set or replace the value of a key."""

    @abstractmethod
    def get(self, key: str, timeout: timedelta | float | None = None) -> bytes:
        """Return a key's value, waiting until it has one."""

    @abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key holds as decimal text, 0 if it is missing, and return the sum."""

    @abstractmethod
    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key that holds `expected`, or that is missing while `expected` is empty.

        Returns the value of the key now; or `expected`, if the key is missing and was not set.
        """

    @abstractmethod
    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of a key's value; a missing key counts as empty."""

    @abstractmethod
    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it was there. A queue of that name stays."""

    # -- several keys ---------------------------------------------------------------------------------------

    @abstractmethod
    def multi_get(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> list[bytes]:
        """Return the values of all keys in their order, waiting until every one is there."""

    @abstractmethod
    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set all keys or, if a limit forbids it, none."""

    @abstractmethod
    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Return once every key is there; a queue that is not empty counts too."""

    @abstractmethod
    def check(self, keys: Sequence[str]) -> bool:
        """Return at once whether every key is there; a queue that is not empty counts too."""

    @abstractmethod
    def num_keys(self, prefix: str = "") -> int:
        """Count the keys that start with `prefix`; queues are not keys."""

    @abstractmethod
    def list_keys(self, prefix: str = "") -> list[str]:
        """List the keys that start with `prefix`, oldest first; queues are not keys."""

    # -- queues ---------------------------------------------------------------------------------------------

    @abstractmethod
    def queue_push(self, key: str, value: str | bytes) -> None:
        """Add a value to the end of a queue."""

    @abstractmethod
    def queue_pop(self, key: str, block: bool = True, timeout: timedelta | float | None = None) -> bytes:
        """Take the oldest value of a queue; waits if it is empty, unless `block` is false."""

    @abstractmethod
    def queue_len(self, key: str) -> int:
        """Count the values in a queue."""

    # -- the rest -------------------------------------------------------------------------------------------

    def barrier(self, key: str, world_size: int, timeout: timedelta | float | None = None) -> None:
        """Return once `world_size` callers have arrived; the same key can be used for their next barrier."""
        if world_size < 1:
            raise UsageError(f"a barrier is for one caller or more, not {world_size}")
        arrived = self.add(f"{key}/arrived", 1)
        meeting = (arrived - 1) // world_size
        if arrived % world_size == 0:
            self.set(f"{key}/{meeting}", b"")
            if meeting > 0:  # a caller that arrives here has left the barrier before
                self.delete_key(f"{key}/{meeting - 1}")
        else:
            self.wait([f"{key}/{meeting}"], timeout)

    @abstractmethod
    def clone(self) -> Store:
        """Return another object for the same keys, with a timeout of its own."""

    def has_extended_api(self) -> bool:
        """Return True: `append`, `multi_get` and `multi_set` work in every store of ours."""
        return True


def to_bytes(value: str | bytes) -> bytes:
    """Return a value as it is stored."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise UsageError("a text value must be valid UTF-8; give bytes if it is not") from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise UsageError(f"a value is bytes or text, not {type(value).__name__}")
