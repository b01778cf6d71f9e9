"""A store made of requests: every method becomes one request, and one method gets its answer."""

from __future__ import annotations

import operator
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

from holdfast.errors import (
    HoldfastError,
    PeerError,
    StoreLimitError,
    StoreTimeoutError,
    UnavailableError,
    UsageError,
)
from holdfast.quantities import to_seconds
from holdfast.store.api import TIMEOUT_S, Store, to_bytes
from holdfast.store.messages import (
    REQUEST_BYTES_MAX,
    Fault,
    StoreAdd,
    StoreAppend,
    StoreCheck,
    StoreCompareSet,
    StoreDelete,
    StoreFailed,
    StoreGet,
    StoreListKeys,
    StoreMultiGet,
    StoreMultiSet,
    StoreNumKeys,
    StoreQueueLen,
    StoreQueuePop,
    StoreQueuePush,
    StoreSet,
    StoreWait,
)
from holdfast.text import check_text, clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

_ERRORS: dict[Fault, type[HoldfastError]] = {
    Fault.TIMEOUT: StoreTimeoutError,
    Fault.LIMIT: StoreLimitError,
    Fault.USAGE: UsageError,
    Fault.DROPPED: UnavailableError,
    Fault.PROTOCOL: PeerError,
}


class AskingStore(Store):
    """The part that a store over the wire and one in memory share."""

    def __init__(self, space: str, timeout: timedelta | float = TIMEOUT_S) -> None:
        super().__init__(timeout)
        self.space = space

    @abstractmethod
    def _ask(self, timeout_s: float, kind: Any, *fields: Any) -> Any:
        """Send `kind(id, space, *fields)` and return the reply, or raise the error that `failure` makes of it.

        A request that waits has its timeout as the last field too.
        """

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(self._timeout_s, StoreSet, _key(key), _fitting(value))

    def get(self, key: str, timeout: timedelta | float | None = None) -> bytes:
        timeout_s = self._timeout_s if timeout is None else to_seconds(timeout)
        return self._ask(timeout_s, StoreGet, _key(key), timeout_s).value  # type: ignore[no-any-return]

    def add(self, key: str, amount: int) -> int:
        reply = self._ask(self._timeout_s, StoreAdd, _key(key), _int64(amount))
        return reply.number  # type: ignore[no-any-return]

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        reply = self._ask(self._timeout_s, StoreCompareSet, _key(key), *_all_fitting([expected, desired]))
        return reply.value  # type: ignore[no-any-return]

    def append(self, key: str, value: str | bytes) -> None:
        self._ask(self._timeout_s, StoreAppend, _key(key), _fitting(value))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(self._timeout_s, StoreDelete, _key(key)).number)

    def multi_get(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> list[bytes]:
        timeout_s = self._timeout_s if timeout is None else to_seconds(timeout)
        reply = self._ask(timeout_s, StoreMultiGet, _listed(keys), timeout_s)
        return reply.values  # type: ignore[no-any-return]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        if len(keys) != len(values):
            raise UsageError(f"{len(keys)} keys and {len(values)} values were given; there must be as many of each")
        self._ask(self._timeout_s, StoreMultiSet, _listed(keys), _all_fitting(values))

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        timeout_s = self._timeout_s if timeout is None else to_seconds(timeout)
        self._ask(timeout_s, StoreWait, _listed(keys), timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(self._timeout_s, StoreCheck, _listed(keys)).number)

    def num_keys(self, prefix: str = "") -> int:
        return self._ask(self._timeout_s, StoreNumKeys, _key(prefix)).number  # type: ignore[no-any-return]

    def list_keys(self, prefix: str = "") -> list[str]:
        return self._ask(self._timeout_s, StoreListKeys, _key(prefix)).keys  # type: ignore[no-any-return]

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._ask(self._timeout_s, StoreQueuePush, _key(key), _fitting(value))

    def queue_pop(self, key: str, block: bool = True, timeout: timedelta | float | None = None) -> bytes:
        timeout_s = self._timeout_s if timeout is None else to_seconds(timeout)
        reply = self._ask(timeout_s, StoreQueuePop, _key(key), timeout_s if block else 0.0)
        return reply.value  # type: ignore[no-any-return]

    def queue_len(self, key: str) -> int:
        return self._ask(self._timeout_s, StoreQueueLen, _key(key)).number  # type: ignore[no-any-return]


def failure(reply: StoreFailed) -> HoldfastError:
    """Return the error for a refusal."""
    return _ERRORS[reply.fault](reply.reason)


def _key(key: str) -> str:
    if not isinstance(key, str):
        raise UsageError(f"a key is text, not {type(key).__name__}")
    return key if key.isascii() else check_text("the key", key)


def _listed(keys: Sequence[str]) -> list[str]:
    if isinstance(keys, str):
        raise UsageError(f"a list of keys is needed, not the one key '{keys}'")
    listed = keys if type(keys) is list else list(keys)
    try:
        joined = "".join(listed)  # the fastest way to see that all of them are text
    except TypeError:
        raise UsageError("every key must be text") from None
    if not joined.isascii():
        check_text("the key", next((key for key in listed if clean(key) != key), ""))
    if len(joined) > REQUEST_BYTES_MAX:
        raise StoreLimitError(f"the {len(listed)} keys are too long to be sent at once")
    return listed


def _fitting(value: str | bytes) -> bytes:
    value = to_bytes(value)
    if len(value) > REQUEST_BYTES_MAX:
        raise StoreLimitError(f"a value of {len(value)} bytes is over the limit of {REQUEST_BYTES_MAX} for one request")
    return value


def _all_fitting(values: Sequence[str | bytes]) -> list[bytes]:
    # Many values are usually bytes; then one check is enough for all.
    plain = set(map(type, values)) == {bytes}
    fitting = cast("list[bytes]", list(values)) if plain else list(map(to_bytes, values))
    size = sum(map(len, fitting)) + 5 * len(fitting)
    if size > REQUEST_BYTES_MAX:
        raise StoreLimitError(f"values of {size} bytes are over the limit of {REQUEST_BYTES_MAX} for one request")
    return fitting


def _int64(amount: int) -> int:
    amount = operator.index(amount)
    if not -(2**63) <= amount < 2**63:
        raise UsageError(f"{amount} does not fit 64 bits")
    return amount
