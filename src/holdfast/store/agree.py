"""Agreements through any store: all-gather, and a barrier that can name the ranks that are missing.

The names and keys are TorchElastic's, so agents of both kinds use the same barrier. A store is anything with `set`,
`get`, `add`, `wait` and `set_timeout`: ours, or one of torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

#: How many missing ranks are named.
MISSING_NAMED_MAX = 16

_COUNT, _LAST, _HERE, _KNOWN = "/num_members", "/last_member", "/TRACE", "/TRACING_GATE"


@contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:
    """Set another timeout of a store, in seconds, for the time being."""
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """Return the value of every rank under `prefix`; rank 0 waits until all have read."""
    data: list[bytes] = store.multi_get([f"{prefix}{each}" for each in range(world_size)])
    last = _check_in(store, world_size, f"{prefix}/finished")
    if rank == 0:
        store.wait([last])  # it may host the store, which must not end yet
    return data


def synchronize(
    store: Any, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> list[bytes]:
    """Send each rank's data to all ranks; return it by rank."""
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Wait until `world_size` callers have arrived; raises the store's timeout error.

    With a rank given, the error names the ranks that did not arrive: rank 0 finds out, the others refer to it.
    """
    last = _check_in(store, world_size, key_prefix)
    with store_timeout(store, barrier_timeout):
        try:
            store.wait([last])
        except Exception as error:
            if rank is None:
                raise
            decode = rank_tracing_decoder or str
            missing = _find_missing(store, world_size, key_prefix, rank, decode, trace_timeout)
            if missing is None:
                raise
            raise type(error)(
                f"Timed out waiting on barrier on rank {rank}, for key prefix: {key_prefix} (world_size={world_size}, "
                f"missing_ranks={missing}, timeout={barrier_timeout})"
            ) from error


def _check_in(store: Any, world_size: int, prefix: str) -> str:
    """Count this caller; return the key that exists once all have arrived."""
    if store.add(f"{prefix}{_COUNT}", 1) == world_size:
        store.set(f"{prefix}{_LAST}", "<val_ignored>")
    return f"{prefix}{_LAST}"


def _find_missing(
    store: Any, world_size: int, prefix: str, rank: int, decode: Callable[[int], str], timeout_s: float
) -> str | None:
    """Return which ranks are missing; empty if rank 0 itself does not answer."""
    store.set(f"{prefix}{rank}{_HERE}", "<val_ignored>")
    if rank != 0:
        came = _is_there(store, f"{prefix}{_KNOWN}", store.timeout.total_seconds())
        return f"[<check rank 0 ({decode(0)}) for missing rank info>]" if came else None
    missing: list[str] = []
    for each in range(1, world_size):
        # Ranks that are late for the same reason are late together: wait only for the first.
        if not _is_there(store, f"{prefix}{each}{_HERE}", 0.001 if missing else timeout_s):
            missing.append(decode(each))
        if len(missing) == MISSING_NAMED_MAX:
            break
    store.set(f"{prefix}{_KNOWN}", "<val_ignored>")
    return f"[{', '.join(missing)}]"


def _is_there(store: Any, key: str, timeout_s: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except Exception:  # noqa: BLE001 - every kind of store has its own error for this
        return False
    return True
