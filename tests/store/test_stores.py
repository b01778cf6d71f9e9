"""Every store of ours does what the contract says."""

import threading
import time
from datetime import timedelta

import pytest

from holdfast.errors import StoreLimitError, StoreTimeoutError, UnavailableError, UsageError
from holdfast.store import MemoryStore, PrefixStore, Store, StoreClient, StoreLimits
from holdfast.testing.store_contract import store_cases
from holdfast.testing.store_server import StoreServer


@pytest.fixture(params=["memory", "prefix", "client", "prefix of client", "prefix of prefix"])
def make(request):
    """Return the function that makes one more object for the same keys."""
    if "client" not in request.param:
        memory = MemoryStore("run/1")
        memory.within("run/2").set("a", "of another round")
        if request.param == "memory":
            yield memory.clone
            return
        memory.set("a", "outside the prefix")
        inner = PrefixStore("outer", memory) if request.param == "prefix of prefix" else memory
        yield lambda: PrefixStore("p", inner)
        return
    with (
        StoreServer(secret=b"s") as server,
        StoreClient.connect(server.endpoint, "run/1", secret=b"s") as client,
    ):
        client.within("run/0").set("a", "of another round")
        yield client.clone if request.param == "client" else lambda: PrefixStore("p", client)
        server.snapshot()


@pytest.mark.parametrize("case", store_cases(), ids=lambda case: case.__name__)
def test_contract(case, make):
    case(make)


def test_each_store_is_a_store(make):
    assert isinstance(make(), Store)


def test_timeouts_may_be_seconds(make):
    store = make()
    store.set_timeout(1.5)

    assert store.timeout == timedelta(seconds=1.5)
    with pytest.raises(StoreTimeoutError):
        store.get("k", 0)
    with pytest.raises(StoreTimeoutError):
        store.queue_pop("k", timeout=0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda store: store.set_timeout(-1),
        lambda store: store.get("k", float("nan")),
        lambda store: store.set(3, "v"),
        lambda store: store.set("k", 3),
        lambda store: store.wait("k"),
        lambda store: store.check(["k", 3]),
        lambda store: store.add("n", 2**63),
        lambda store: store.barrier("b", 0),
    ],
)
def test_a_wrong_use_is_refused_before_anything_is_asked(wrong):
    store = MemoryStore()

    with pytest.raises(UsageError):
        wrong(store)
    assert store.num_keys() == 0


def test_values_may_be_any_bytes():
    store = MemoryStore()
    store.multi_set(["a", "b"], [bytearray(b"1"), memoryview(b"2")])

    assert store.multi_get(["a", "b"]) == [b"1", b"2"]


def test_a_value_too_large_for_a_frame_is_refused_by_name():
    with pytest.raises(StoreLimitError, match="over the limit"):
        MemoryStore().set("k", bytes(64 * 1024 * 1024))
    with pytest.raises(StoreLimitError, match="over the limit"):
        MemoryStore().multi_set(["a"] * 64, [bytes(1024 * 1024)] * 64)


def test_a_full_store_says_so():
    store = MemoryStore(limits=StoreLimits(keys_max=1))
    store.set("k", "v")

    with pytest.raises(StoreLimitError, match="which is its limit"):
        store.set("another", "v")


def test_a_dropped_namespace_ends_what_waits_in_it():
    store = MemoryStore("run/1")
    errors = []

    def wait():
        try:
            store.get("k")
        except UnavailableError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 30
    while not store.snapshot()["waiters"]:
        assert time.monotonic() < deadline, "the get does not wait"
        time.sleep(0.001)
    store.drop("run/")
    thread.join(240)

    assert errors == ["the keys were dropped: the run or the round that they belonged to is over"]


def test_a_prefix_keeps_its_own_timeout_and_follows_the_store_below_until_then():
    below = MemoryStore(timeout=7)
    store = PrefixStore("p", below)
    below.set_timeout(9)
    assert store.timeout == timedelta(seconds=9)
    store.set_timeout(timedelta(seconds=3))

    assert below.timeout == timedelta(seconds=9)
    assert store.clone().timeout == timedelta(seconds=3)
    store.set("k", "v")
    assert below.list_keys() == ["p/k"]
    assert store.underlying_store is below
