"""Agreements through a store: everybody's data for everybody, and barriers that name who is missing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from holdfast.errors import StoreTimeoutError
from holdfast.store import MemoryStore, PrefixStore
from holdfast.store.agree import MISSING_NAMED_MAX, barrier, get_all, store_timeout, synchronize


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_everybody_gets_everybodys_data(threads: ThreadPoolExecutor) -> None:
    store = MemoryStore()
    asked = [threads.submit(synchronize, store.clone(), f"{rank}".encode(), rank, 4, "k", 60) for rank in range(4)]

    assert [each.result(240) for each in asked] == [[b"0", b"1", b"2", b"3"]] * 4


def test_rank_0_stays_until_all_have_read(threads: ThreadPoolExecutor) -> None:
    store = MemoryStore()
    for rank in range(2):
        store.set(f"k{rank}", b"x")
    staying = threads.submit(get_all, store.clone(), 0, "k", 2)

    assert not staying.done()
    assert get_all(store, 1, "k", 2) == [b"x", b"x"]
    assert staying.result(240) == [b"x", b"x"]


def test_a_barrier_lets_all_through_once_all_are_there(threads: ThreadPoolExecutor) -> None:
    store = MemoryStore()
    asked = [threads.submit(barrier, PrefixStore("p", store.clone()), 3, "b", 60) for _ in range(3)]

    for each in asked:
        each.result(240)


def test_a_barrier_that_times_out_names_missing_ranks(threads: ThreadPoolExecutor) -> None:
    store = MemoryStore()
    asked = [
        threads.submit(barrier, store.clone(), 4, "b", 0.05, rank, lambda each: f"host{each}", 8 if rank == 0 else 1)
        for rank in (0, 1)
    ]
    store.set("b2/TRACE", "")  # a rank that came to the tracing alone

    with pytest.raises(
        StoreTimeoutError, match=r"on rank 0, for key prefix: b \(world_size=4, missing_ranks=\[host3\]"
    ):
        asked[0].result(240)
    with pytest.raises(StoreTimeoutError):
        asked[1].result(240)


def test_a_barrier_without_a_rank_raises_what_the_store_raises() -> None:
    store = MemoryStore()

    with pytest.raises(StoreTimeoutError) as raised:
        barrier(store, 2, "b", 0.01)
    assert "missing_ranks" not in str(raised.value)
    assert store.timeout == MemoryStore().timeout


def test_not_all_of_many_missing_ranks_are_named() -> None:
    with pytest.raises(StoreTimeoutError) as raised:
        barrier(MemoryStore(), 1000, "b", 0.01, rank=0, trace_timeout=0.01)

    assert str(raised.value).count(",") < MISSING_NAMED_MAX + 5


def test_a_timeout_is_given_back() -> None:
    store = MemoryStore()
    store.set_timeout(7)

    with store_timeout(store, 3):
        assert store.timeout == timedelta(seconds=3)
    assert store.timeout == timedelta(seconds=7)
