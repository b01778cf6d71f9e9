"""What every store must do. Give it a way to make one, and it checks the whole interface.

    @pytest.mark.parametrize("case", store_cases(), ids=lambda case: case.__name__)
    def test_contract(case):
        case(make_my_store)

`make()` returns a store without keys, and `make()` called again another object for the same keys. A case
fails with an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.errors import StoreTimeoutError, UsageError
from holdfast.testing.cases import Background, Cases, raises

SHORT_S = 0.02

Make = Callable[[], Any]
Case = Callable[[Make], None]

_case: Cases[Case] = Cases()


def store_cases() -> list[Case]:
    """Return every case, in a fixed order."""
    return _case.all()


# -- one key ------------------------------------------------------------------------------------------------


@_case
def a_value_that_was_set_is_got(make: Make) -> None:
    """Text comes back as its UTF-8 bytes, bytes as they were, and the last value wins."""
    store = make()
    store.set("text", "größe")
    store.set("bytes", b"\x00\xff\x80")
    store.set("empty", "")
    store.set("twice", "1")
    store.set("twice", "2")

    assert store.get("text") == "größe".encode()
    assert store.get("bytes") == b"\x00\xff\x80"
    assert store.get("empty") == b""
    assert store.get("twice") == b"2"


@_case
def a_get_waits_for_its_key(make: Make) -> None:
    """A thread in `get` is woken by another's `set` and holds it up no longer than that."""
    reader, writer = make(), make()
    waiting = Background(lambda: reader.get("late"))
    writer.set("other", "1")
    writer.set("late", "now")

    assert waiting.result() == b"now"


@_case
def a_key_that_does_not_come_is_named(make: Make) -> None:
    """Every way of waiting gives up at its timeout, and the error names what was missing."""
    store = make()
    store.set("there", "1")
    store.set_timeout(timedelta(seconds=SHORT_S))

    assert store.timeout == timedelta(seconds=SHORT_S)
    assert "absent'" in raises(StoreTimeoutError, store.get, "absent")
    message = raises(StoreTimeoutError, store.multi_get, ["there", "absent"])
    assert "absent'" in message
    assert "there'" not in message
    assert "absent'" in raises(StoreTimeoutError, store.wait, ["absent", "there"])
    assert "absent'" in raises(StoreTimeoutError, store.wait, ["absent"], timedelta(seconds=SHORT_S))


@_case
def a_number_is_added_to(make: Make) -> None:
    """A missing key counts as 0, the number is kept as decimal text, and a value that is not a number is refused."""
    store = make()

    assert store.add("n", 5) == 5
    assert store.add("n", -7) == -2
    assert store.get("n") == b"-2"
    assert store.add("n", 0) == -2
    store.set("n", "40")
    assert store.add("n", 2) == 42
    store.set("word", "forty")
    assert "word'" in raises(UsageError, store.add, "word", 1)
    assert store.get("word") == b"forty"


@_case
def adding_from_many_threads_loses_nothing(make: Make) -> None:
    """Each of many concurrent `add`s gets its own sum."""
    store = make()
    threads = [Background(lambda: [store.add("n", 1) for _ in range(25)]) for _ in range(8)]
    sums = [each for thread in threads for each in thread.result()]

    assert sorted(sums) == list(range(1, 201))


@_case
def compare_set_sets_only_what_is_expected(make: Make) -> None:
    """It has torch's four outcomes."""
    store = make()

    assert store.compare_set("k", "something", "new") == b"something"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "other", "second") == b"first"
    assert store.compare_set("k", "first", b"\xff") == b"\xff"
    assert store.get("k") == b"\xff"
    store.set("empty", "")
    assert store.compare_set("empty", "", "full") == b"full"


@_case
def compare_set_has_one_winner(make: Make) -> None:
    """Of many that try to be first, all see the same one."""
    store = make()
    threads = [Background(partial(store.compare_set, "leader", "", str(number))) for number in range(8)]
    seen = [thread.result() for thread in threads]

    assert seen == [store.get("leader")] * 8


@_case
def append_adds_to_the_end(make: Make) -> None:
    """A missing key counts as empty, and appending to one wakes the clients that wait for it."""
    store = make()
    waiting = Background(lambda: store.wait(["log"]))
    store.append("log", "a")
    waiting.result()
    store.append("log", b"b")

    assert store.get("log") == b"ab"


@_case
def a_deleted_key_is_gone(make: Make) -> None:
    """`delete_key` says whether there was anything, and the key can come back."""
    store = make()
    store.set("k", "1")

    assert store.delete_key("k") is True
    assert store.delete_key("k") is False
    assert not store.check(["k"])
    raises(StoreTimeoutError, store.wait, ["k"], timedelta(seconds=SHORT_S))
    store.set("k", "2")
    assert store.get("k") == b"2"


# -- several keys -------------------------------------------------------------------------------------------


@_case
def several_keys_are_set_and_got_at_once(make: Make) -> None:
    """Values come in the order asked, a key may be asked twice, and lists must fit each other."""
    store = make()
    store.multi_set(["a", "b", "c"], ["1", b"\xff", ""])

    assert store.multi_get(["c", "a", "b", "a"]) == [b"", b"1", b"\xff", b"1"]
    assert store.multi_get([]) == []
    store.multi_set([], [])
    raises(UsageError, store.multi_set, ["a", "b"], ["1"])
    assert store.get("a") == b"1"
    assert store.has_extended_api()


@_case
def waiting_for_several_keys_waits_for_all(make: Make) -> None:
    """`wait` and `multi_get` return once the last key is there."""
    store, writer = make(), make()
    threads = [
        Background(lambda: store.multi_get(["a", "b"])),
        Background(lambda: store.wait(["b", "a", "b"])),
    ]
    writer.set("a", "1")
    writer.multi_set(["x", "b"], ["0", "2"])

    assert [thread.result() for thread in threads] == [[b"1", b"2"], None]
    store.wait([])
    store.wait(["a", "b"])


@_case
def check_tells_without_waiting(make: Make) -> None:
    """It is true only of keys that are all there; of none it is true."""
    store = make()
    store.set("a", "1")

    assert store.check(["a"]) is True
    assert store.check(["a", "b"]) is False
    assert store.check([]) is True


@_case
def keys_are_counted_and_listed(make: Make) -> None:
    """Only what this store can see counts, and queues are not keys."""
    store = make()
    assert store.num_keys() == 0
    assert store.list_keys() == []
    store.multi_set(["b", "a"], ["1", "2"])
    store.add("n", 1)
    store.queue_push("q", "1")
    store.delete_key("a")

    assert store.num_keys() == 2
    assert sorted(store.list_keys()) == ["b", "n"]


@_case
def objects_share_keys_and_not_timeouts(make: Make) -> None:
    """A clone sees the same keys and has a timeout of its own."""
    store = make()
    store.set_timeout(timedelta(seconds=60))
    clone = store.clone()
    clone.set("k", "1")
    clone.set_timeout(timedelta(seconds=5))

    assert store.get("k") == b"1"
    assert store.timeout == timedelta(seconds=60)
    assert clone.timeout == timedelta(seconds=5)


# -- queues -------------------------------------------------------------------------------------------------


@_case
def a_queue_gives_what_came_first(make: Make) -> None:
    """Values leave in the order they came; an empty queue is waited for or reported."""
    store = make()
    store.queue_push("q", "1")
    store.queue_push("q", b"\xff")

    assert store.queue_len("q") == 2
    assert store.check(["q"]) is True
    store.wait(["q"])
    assert store.queue_pop("q") == b"1"
    assert store.queue_pop("q", False) == b"\xff"
    assert store.queue_len("q") == 0
    assert store.check(["q"]) is False
    assert "q'" in raises(StoreTimeoutError, store.queue_pop, "q", False)
    store.set_timeout(timedelta(seconds=SHORT_S))
    raises(StoreTimeoutError, store.queue_pop, "q")


@_case
def a_queued_value_is_taken_once(make: Make) -> None:
    """Of several that wait at a queue, each value wakes one."""
    store, writer = make(), make()
    threads = [Background(lambda: store.queue_pop("q")) for _ in range(4)]
    for number in range(4):
        writer.queue_push("q", str(number))

    assert sorted(thread.result() for thread in threads) == [b"0", b"1", b"2", b"3"]


@_case
def a_barrier_lets_all_go_together(make: Make) -> None:
    """No thread passes before the last one has come, and the same barrier serves again."""
    store = make()
    for _ in range(3):
        threads = [Background(lambda: store.barrier("b", 3)) for _ in range(3)]
        assert [thread.result() for thread in threads] == [None] * 3
    raises(StoreTimeoutError, store.barrier, "alone", 2, timedelta(seconds=SHORT_S))
