"""The store's machine: questions in, answers out, at virtual times."""

import dataclasses
import json

import pytest

from holdfast.machine import Tick
from holdfast.store.keys import StoreLimits
from holdfast.store.machine import Answer, Asked, PeerGone, SpaceDropped, StoreMachine
from holdfast.store.messages import (
    Fault,
    StoreAdd,
    StoreAppend,
    StoreBye,
    StoreCheck,
    StoreCompareSet,
    StoreDelete,
    StoreDone,
    StoreFailed,
    StoreGet,
    StoreHello,
    StoreKeys,
    StoreListKeys,
    StoreMultiGet,
    StoreMultiSet,
    StoreNumber,
    StoreNumKeys,
    StoreQueueLen,
    StoreQueuePop,
    StoreQueuePush,
    StoreSet,
    StoreValue,
    StoreValues,
    StoreWait,
    StoreWelcome,
)


class Store:
    """A machine with its peers' counters and a clock that only moves when told."""

    def __init__(self, **limits: int) -> None:
        self.machine = StoreMachine("first life", StoreLimits(**limits))
        self.now = 100.0
        self.ids: dict[str, int] = {}

    def tell(self, event: object) -> list[Answer]:
        answers = self.machine.handle(event, self.now)
        self.machine.check()
        return answers

    def hello(self, peer: str, channel: str | None = None) -> StoreWelcome:
        [answer] = self.tell(Asked(peer, StoreHello(channel or f"channel of {peer}")))
        assert answer.peer == peer
        return answer.reply

    def ask(self, peer: str, kind: type, *fields: object, space: str = "run") -> list[Answer]:
        if peer not in self.ids:
            self.ids[peer] = 0
            self.hello(peer)
        self.ids[peer] += 1
        return self.tell(Asked(peer, kind(self.ids[peer], space, *fields)))

    def reply(self, peer: str, kind: type, *fields: object, space: str = "run") -> object:
        """Ask what is answered at once and wakes no client."""
        [answer] = self.ask(peer, kind, *fields, space=space)
        assert answer.peer == peer
        assert getattr(answer.reply, "id", None) == self.ids[peer]
        return answer.reply

    def pass_time(self, seconds: float) -> list[Answer]:
        self.now += seconds
        return self.tell(Tick())


@pytest.fixture
def store() -> Store:
    return Store()


def test_a_question_that_waits_is_answered_by_the_write_it_waits_for(store):
    assert store.ask("a", StoreGet, "k", 5.0) == []
    assert store.machine.wakeup() == 105.0

    answers = store.ask("b", StoreSet, "k", b"v")

    assert answers == [Answer("b", StoreDone(1)), Answer("a", StoreValue(1, b"v"))]
    assert store.machine.wakeup() is None


def test_who_waited_first_is_answered_first(store):
    for peer in "dcba":
        store.ask(peer, StoreGet, "k", 5.0)

    answers = store.ask("z", StoreAppend, "k", b"v")

    assert [answer.peer for answer in answers] == ["z", "d", "c", "b", "a"]


def test_time_runs_out_at_the_wakeup_and_the_missing_keys_are_named(store):
    store.ask("w", StoreSet, "there", b"1")
    store.ask("a", StoreMultiGet, ["there", "x", "y", "x"], 5.0)
    store.ask("b", StoreWait, ["x"], 2.5)
    store.ask("c", StoreGet, "y", 2.0)

    assert store.machine.wakeup() == 102.0
    assert store.pass_time(1.9) == []
    [first] = store.pass_time(0.1)
    assert first == Answer("c", StoreFailed(1, Fault.TIMEOUT, "the key 'y' did not appear within 2 s"))
    [second, third] = store.pass_time(60)
    assert second == Answer("b", StoreFailed(1, Fault.TIMEOUT, "the key 'x' did not appear within 2.5 s"))
    assert third.peer == "a"
    assert third.reply.reason == "2 of 4 keys did not appear within 5 s: 'x', 'y'"
    assert store.machine.wakeup() is None


def test_many_missing_keys_are_not_all_named(store):
    reply = store.reply("a", StoreWait, [f"k{number}" for number in range(20)], 0.0)

    assert reply.reason.startswith("20 of 20 keys did not appear and the request was not to wait: 'k0', 'k1'")
    assert reply.reason.endswith(" and 12 more")


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_question_without_time_is_answered_at_once(store, timeout_s):
    assert store.reply("a", StoreGet, "k", timeout_s).fault is Fault.TIMEOUT
    assert store.reply("a", StoreQueuePop, "k", timeout_s).reason.startswith("nothing was in the queue 'k'")
    assert store.machine.wakeup() is None


def test_no_question_waits_forever():
    store = Store(wait_s_max=60)
    store.ask("a", StoreGet, "k", float("inf"))

    assert store.machine.wakeup() == 160.0


def test_all_keys_must_be_there_at_once(store):
    store.ask("a", StoreMultiGet, ["x", "y"], 50.0)
    store.ask("w", StoreSet, "x", b"1")
    store.ask("w", StoreDelete, "x")

    assert store.ask("w", StoreSet, "y", b"2") == [Answer("w", StoreDone(3))]
    assert store.ask("w", StoreSet, "x", b"3")[1:] == [Answer("a", StoreValues(1, [b"3", b"2"]))]


def test_a_batch_wakes_the_clients_it_completes(store):
    store.ask("a", StoreMultiGet, ["x", "y"], 50.0)
    store.ask("b", StoreWait, ["y", "z"], 50.0)

    answers = store.ask("w", StoreMultiSet, ["y", "x", "y"], [b"1", b"2", b"3"])

    assert answers == [Answer("w", StoreDone(1)), Answer("a", StoreValues(1, [b"2", b"3"]))]


def test_namespaces_do_not_see_each_other(store):
    store.ask("a", StoreGet, "k", 50.0, space="run/1")
    store.ask("w", StoreSet, "k", b"old", space="run/0")

    assert store.reply("w", StoreCheck, ["k"], space="run/1") == StoreNumber(2, 0)
    assert store.reply("w", StoreNumKeys, "", space="run/1") == StoreNumber(3, 0)
    assert store.reply("w", StoreListKeys, "", space="run/0") == StoreKeys(4, ["k"])
    assert store.ask("w", StoreSet, "k", b"new", space="run/1")[1:] == [Answer("a", StoreValue(1, b"new"))]


def test_a_dropped_namespace_is_empty_and_its_waiters_are_told(store):
    store.ask("w", StoreSet, "k", b"1", space="run/1")
    store.ask("w", StoreQueuePush, "q", b"1", space="run/1")
    store.ask("w", StoreSet, "k", b"1", space="other")
    store.ask("b", StoreQueuePop, "empty", 50.0, space="run/1")
    store.ask("a", StoreWait, ["x", "y"], 50.0, space="run/2")
    store.ask("c", StoreGet, "x", 50.0, space="other")

    answers = store.tell(SpaceDropped("run/", "the run is over"))

    assert answers == [
        Answer("b", StoreFailed(1, Fault.DROPPED, "the run is over")),
        Answer("a", StoreFailed(1, Fault.DROPPED, "the run is over")),
    ]
    assert list(store.machine.snapshot()["spaces"]) == ["other"]
    assert store.reply("w", StoreCheck, ["k"], space="run/1") == StoreNumber(4, 0)
    assert store.tell(SpaceDropped("nothing starts like this")) == []


def test_a_peers_question_vanishes_with_it(store):
    store.ask("a", StoreWait, ["x", "y"], 5.0)

    assert store.tell(PeerGone("a")) == []
    assert store.machine.wakeup() is None
    assert store.machine.snapshot()["spaces"] == {}
    assert store.ask("w", StoreSet, "x", b"1") == [Answer("w", StoreDone(1))]
    assert store.tell(PeerGone("a")) == []


# -- queues ----------------------------------------------------------------------------------------------


def test_a_queue_serves_values_and_callers_in_their_order(store):
    for value in (b"1", b"2"):
        store.ask("w", StoreQueuePush, "q", value)
    assert store.reply("a", StoreQueuePop, "q", 1.0) == StoreValue(1, b"1")
    assert store.reply("a", StoreQueueLen, "q") == StoreNumber(2, 1)
    assert store.reply("a", StoreQueuePop, "q", 1.0) == StoreValue(3, b"2")
    store.ask("a", StoreQueuePop, "q", 5.0)
    store.ask("b", StoreQueuePop, "q", 5.0)

    assert store.ask("w", StoreQueuePush, "q", b"3")[1:] == [Answer("a", StoreValue(4, b"3"))]
    assert store.ask("w", StoreQueuePush, "q", b"4")[1:] == [Answer("b", StoreValue(1, b"4"))]
    assert store.reply("w", StoreQueueLen, "q") == StoreNumber(5, 0)


def test_a_queue_that_holds_something_counts_for_wait_and_not_for_get(store):
    store.ask("a", StoreWait, ["q"], 5.0)
    store.ask("b", StoreGet, "q", 5.0)

    assert store.ask("w", StoreQueuePush, "q", b"1")[1:] == [Answer("a", StoreDone(1))]
    assert store.reply("w", StoreCheck, ["q"]) == StoreNumber(2, 1)
    assert store.reply("w", StoreNumKeys, "") == StoreNumber(3, 0)
    assert store.reply("w", StoreDelete, "q") == StoreNumber(4, 0)
    assert store.ask("w", StoreSet, "q", b"2")[1:] == [Answer("b", StoreValue(1, b"2"))]


# -- channels --------------------------------------------------------------------------------------------

WRITES = [
    (StoreAdd, ("n", 1), StoreNumber(1, 1)),
    (StoreAppend, ("log", b"x"), StoreDone(1)),
    (StoreCompareSet, ("c", b"", b"x"), StoreValue(1, b"x")),
    (StoreSet, ("k", b"x"), StoreDone(1)),
    (StoreMultiSet, (["k"], [b"x"]), StoreDone(1)),
    (StoreQueuePush, ("q", b"x"), StoreDone(1)),
    (StoreDelete, ("seed",), StoreNumber(1, 1)),
    (StoreQueuePop, ("seeds", 1.0), StoreValue(1, b"s")),
]


@pytest.mark.parametrize(("kind", "fields", "reply"), WRITES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_write_asked_again_on_a_new_connection_happens_once(store, kind, fields, reply):
    store.ask("w", StoreSet, "seed", b"s")
    store.ask("w", StoreQueuePush, "seeds", b"s")
    assert store.hello("a", "line").known is False
    store.ids["a"] = 0
    assert store.reply("a", kind, *fields) == reply
    before = store.machine.snapshot()["spaces"]
    store.tell(PeerGone("a"))

    assert store.hello("b", "line") == StoreWelcome("first life", known=True)
    again = store.tell(Asked("b", kind(1, "run", *fields)))

    assert again == [Answer("b", reply)]
    assert store.machine.snapshot()["spaces"] == before


def test_an_answer_lost_on_its_way_to_a_waiting_pop_is_given_again(store):
    store.hello("a", "line")
    store.tell(Asked("a", StoreQueuePop(1, "run", "q", 50.0)))
    store.ask("w", StoreQueuePush, "q", b"1")  # the answer goes to a connection that is already broken
    store.tell(PeerGone("a"))
    store.hello("b", "line")

    assert store.tell(Asked("b", StoreQueuePop(1, "run", "q", 50.0))) == [Answer("b", StoreValue(1, b"1"))]


def test_a_waiting_question_asked_again_takes_over_from_the_old_connection(store):
    store.hello("a", "line")
    store.tell(Asked("a", StoreGet(1, "run", "k", 50.0)))
    store.hello("b", "line")
    store.tell(Asked("b", StoreGet(1, "run", "k", 50.0)))

    assert store.ask("w", StoreSet, "k", b"1")[1:] == [Answer("b", StoreValue(1, b"1"))]
    assert store.tell(PeerGone("a")) == []
    assert store.tell(Asked("b", StoreCheck(2, "run", ["k"]))) == [Answer("b", StoreNumber(2, 1))]


def test_only_the_last_write_is_remembered(store):
    store.ask("a", StoreAdd, "n", 1)
    store.ask("a", StoreAdd, "n", 1)
    [answer] = store.tell(Asked("a", StoreAdd(1, "run", "n", 1)))
    assert answer.reply.fault is Fault.PROTOCOL
    store.ask("a", StoreCheck, ["n"])
    [answer] = store.tell(Asked("a", StoreAdd(2, "run", "n", 1)))

    assert answer.reply.reason == "question 2 is older than the last one answered, 2"
    assert store.reply("a", StoreGet, "n", 0.0).value == b"2"


def test_a_channel_asks_one_question_at_a_time(store):
    store.ask("a", StoreGet, "k", 5.0)

    assert store.reply("a", StoreCheck, ["k"]).fault is Fault.PROTOCOL
    assert store.ask("w", StoreSet, "k", b"1")[1:] == [Answer("a", StoreValue(1, b"1"))]


def test_a_peer_that_did_not_say_hello_is_told_so(store):
    [answer] = store.tell(Asked("a", StoreAdd(7, "run", "n", 1)))

    assert answer == Answer("a", StoreFailed(7, Fault.PROTOCOL, "a channel is opened with StoreHello"))
    assert store.tell(Asked("a", StoreBye())) == []


def test_a_channel_that_said_bye_is_forgotten(store):
    store.hello("a", "line")
    store.tell(Asked("a", StoreAdd(1, "run", "n", 1)))
    store.tell(Asked("a", StoreBye()))
    store.tell(PeerGone("a"))

    assert store.hello("b", "line").known is False
    assert store.machine.snapshot()["channels_away"] == 0


def test_a_bye_ends_what_waits(store):
    store.ask("a", StoreGet, "k", 5.0)
    store.tell(Asked("a", StoreBye()))

    assert store.machine.wakeup() is None


def test_of_too_many_channels_away_the_longest_gone_is_forgotten():
    store = Store(channels_max=2)
    for name in ("a", "b", "c"):
        store.hello(name, name)
    for name in ("b", "a", "c"):
        store.tell(PeerGone(name))

    assert store.hello("a again", "a").known is True
    assert store.hello("b again", "b").known is False
    assert store.hello("c again", "c").known is True


def test_a_second_hello_on_a_connection_changes_its_channel(store):
    store.hello("a", "first")
    store.hello("a", "second")
    store.hello("a", "second")

    assert store.machine.snapshot()["channels"] == 1
    assert store.hello("b", "first").known is True


def test_a_channels_name_has_a_limit(store):
    [answer] = store.tell(Asked("a", StoreHello("x" * 129)))

    assert answer.reply == StoreFailed(0, Fault.PROTOCOL, "a channel's name has at most 128 bytes")


# -- limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "kind", "fields", "reason"),
    [
        ({"key_bytes_max": 4}, StoreSet, ("größe", b""), "the key 'größe' has 7 bytes, over the limit of 4"),
        ({"key_bytes_max": 4}, StoreGet, ("abcde", 1.0), "the key 'abcde' has 5 bytes, over the limit of 4"),
        ({"key_bytes_max": 4}, StoreMultiSet, (["a", "abcde"], [b"", b""]), "the key 'abcde' has 5 bytes"),
        ({"key_bytes_max": 4}, StoreQueuePush, ("abcde", b""), "the key 'abcde' has 5 bytes"),
        (
            {"value_bytes_max": 4},
            StoreSet,
            ("k", b"12345"),
            "the value for 'k' has 5 bytes, over the limit of 4",
        ),
        (
            {"value_bytes_max": 4},
            StoreMultiSet,
            (["j", "k"], [b"", b"12345"]),
            "the value for 'k' has 5 bytes",
        ),
        ({"value_bytes_max": 4}, StoreAppend, ("seed", b"12345"), "the value for 'seed' has 6 bytes"),
        (
            {"total_bytes_max": 9},
            StoreSet,
            ("k", b"12345"),
            "holds 5 bytes and has no room for 6 more: its limit is 9",
        ),
        ({"total_bytes_max": 9}, StoreMultiSet, (["k", "l"], [b"12", b"2"]), "has no room for 5 more"),
        ({"keys_max": 1}, StoreAdd, ("n", 1), "the store holds 1 keys and queued values, which is its limit"),
        ({"keys_max": 2}, StoreMultiSet, (["a", "b", "b"], [b""] * 3), "no room for 2 more: its limit is 2"),
        ({"keys_max": 1}, StoreCompareSet, ("c", b"", b"x"), "which is its limit"),
        ({"keys_max": 1}, StoreQueuePush, ("q", b""), "which is its limit"),
        (
            {"waiters_max": 2},
            StoreWait,
            (["a", "b", "c"], 1.0),
            "the limit of 2 keys being waited for is reached",
        ),
        ({"reply_bytes_max": 8}, StoreMultiGet, (["seed"] * 2, 1.0), "over the limit of 8 for one answer"),
        ({"reply_bytes_max": 8}, StoreListKeys, ("",), "over the limit of 8 for one answer"),
    ],
)
def test_a_refusal_names_its_limit_and_changes_nothing(limits, kind, fields, reason):
    store = Store(**limits)
    store.ask("w", StoreSet, "seed", b"1", space="")
    before = store.machine.snapshot()
    reply = store.reply("w", kind, *fields, space="")

    assert reply.fault is Fault.LIMIT
    assert reason in reply.reason
    assert store.machine.snapshot() == before


def test_a_namespaces_name_is_limited_like_a_key():
    store = Store(key_bytes_max=4)

    assert store.reply("a", StoreSet, "k", b"", space="a long one").fault is Fault.LIMIT
    assert store.reply("a", StoreMultiSet, ["k"], [b""], space="a long one").fault is Fault.LIMIT
    assert store.reply("a", StoreGet, "k", 1.0, space="a long one").fault is Fault.LIMIT


def test_what_is_replaced_or_deleted_makes_room():
    store = Store(total_bytes_max=6, keys_max=1)
    store.ask("w", StoreSet, "k", b"12345")

    assert store.reply("w", StoreSet, "k", b"54321") == StoreDone(2)
    assert store.reply("w", StoreSet, "k", b"1") == StoreDone(3)
    assert store.reply("w", StoreMultiSet, ["k"], [b"12"]) == StoreDone(4)
    assert store.reply("w", StoreDelete, "k") == StoreNumber(5, 1)
    assert store.reply("w", StoreQueuePush, "q", b"12345") == StoreDone(6)
    assert store.reply("w", StoreQueuePop, "q", 0.0) == StoreValue(7, b"12345")
    assert store.reply("w", StoreSet, "j", b"12345") == StoreDone(8)


@pytest.mark.parametrize(("held", "amount"), [(b"x", 1), (b"", 1), (str(2**63 - 1).encode(), 1), (b"0", 2**64 - 1)])
def test_a_sum_that_cannot_be_is_refused(store, held, amount):
    store.ask("w", StoreSet, "n", held)

    assert store.reply("w", StoreAdd, "n", amount).fault is Fault.USAGE
    assert store.reply("w", StoreGet, "n", 0.0) == StoreValue(3, held)


def test_a_batch_of_unequal_lists_is_refused(store):
    assert store.reply("w", StoreMultiSet, ["a"], []).fault is Fault.USAGE


# -- the rest --------------------------------------------------------------------------------------------


def test_keys_are_counted_and_listed_by_prefix(store):
    store.ask("w", StoreMultiSet, ["a/2", "a/1", "b/1"], [b""] * 3)

    assert store.reply("w", StoreListKeys, "a/") == StoreKeys(2, ["a/2", "a/1"])
    assert store.reply("w", StoreNumKeys, "a/") == StoreNumber(3, 2)
    assert store.reply("w", StoreNumKeys, "") == StoreNumber(4, 3)


def test_nothing_is_kept_of_questions_that_were_answered(store):
    """Thousands of questions that wait and are answered leave neither timers nor namespaces behind."""
    store.ask("old", StoreGet, "never", 1000.0)
    store.hello("a", "line")
    store.ids["a"] = 0
    store.ids["w"] = 0
    store.hello("w")
    for number in range(2000):
        store.machine.handle(Asked("a", StoreGet(number + 1, f"space {number}", "k", 5000.0)), store.now)
        store.machine.handle(Asked("w", StoreSet(2 * number + 1, f"space {number}", "k", b"")), store.now)
        store.machine.handle(Asked("w", StoreDelete(2 * number + 2, f"space {number}", "k")), store.now)
    store.machine.check()

    assert list(store.machine.snapshot()["spaces"]) == ["run"]
    assert store.machine.wakeup() == 1100.0


def test_a_snapshot_is_plain_data(store):
    store.ask("w", StoreSet, "k", b"\xff")
    store.ask("w", StoreQueuePush, "q", b"\xff")
    store.ask("a", StoreWait, ["x"], 5.0)
    store.ask("b", StoreQueuePop, "y", 5.0)

    snapshot = store.machine.snapshot()

    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["spaces"]["run"] == {
        "keys": 1,
        "queues": {"q": 1},
        "waiting": {"x": 1},
        "popping": {"y": 1},
    }
    assert dataclasses.asdict(StoreLimits())["keys_max"] > 0
