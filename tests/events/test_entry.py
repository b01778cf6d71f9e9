"""Journal lines say the same everywhere, survive any data, and leave out what repeats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.events.entry import NUMBERS_REMEMBERED_MAX, Sieve, decode, encode, entry_of
from holdfast.events.platform import RunContext
from holdfast.facts import ERROR, Fact, level_name

CONTEXT = RunContext("job", "host-a", 7, node="ab")


def test_a_line_has_every_field_that_readers_rely_on() -> None:
    line = encode(entry_of(Fact("worker_failed", "rank 1 failed", {"rank": 1}, ERROR, 12.5), CONTEXT))

    assert json.loads(line) == {
        "version": 1,
        "time": 12.5,
        "kind": "worker_failed",
        "level": "error",
        "sentence": "rank 1 failed",
        "data": {"rank": 1},
        "number": None,
        "run": "job",
        "host": "host-a",
        "node": "ab",
        "pid": 7,
    }


def test_the_line_of_a_cluster_fact_is_the_same_on_every_node() -> None:
    fact = Fact("round_sealed", "round 1 sealed", {"round": 1}, timestamp=3.0, number=4)

    lines = {encode(entry_of(fact, RunContext("job", host, pid, node=host))) for host, pid in (("a", 1), ("b", 2))}

    assert len(lines) == 1


@pytest.mark.parametrize(
    "data",
    [
        {"x": object()},
        {"x": {1, 2}},
        {("a", 1): 2},
        {"x": float("nan")},
        {"x": "\udc80"},
        {"x": b"\xff"},
        {"x": 1 << 80},
    ],
    ids=["object", "set", "tuple key", "nan", "surrogate", "bytes", "huge number"],
)
def test_any_data_makes_a_line_of_strict_json(data: dict[Any, Any]) -> None:
    line = encode(entry_of(Fact("k", "a lone \udc80 surrogate", data, timestamp=1.0), CONTEXT))

    assert b"\n" not in line
    json.loads(line, parse_constant=pytest.fail)
    assert decode(line) is not None


def test_data_that_contains_itself_makes_a_line() -> None:
    data: dict[str, Any] = {}
    data["self"] = data

    assert decode(encode(entry_of(Fact("k", "s", data, timestamp=1.0), CONTEXT))) is not None


@pytest.mark.parametrize("line", [b"", b"{", b'{"time": 1.0, "kin', b"[]", b'{"kind": "k"}', b"\xff\xfe", b"text"])
def test_what_is_torn_or_foreign_is_no_entry(line: bytes) -> None:
    assert decode(line) is None


def test_fields_of_a_later_version_are_ignored() -> None:
    entry = decode(b'{"version": 2, "time": 1, "kind": "k", "colour": "blue"}')

    assert entry is not None
    assert (entry.time, entry.kind, entry.level) == (1.0, "k", "info")


def test_levels_between_the_named_ones_have_the_name_below() -> None:
    assert [level_name(level) for level in (0, 10, 20, 25, 30, 50)] == [
        "debug",
        "debug",
        "info",
        "info",
        "warning",
        "error",
    ]


def test_a_wait_is_let_through_when_more_than_its_countdown_changes() -> None:
    sieve = Sieve()
    waits = [
        "2 of 4 nodes; last call in 3.0 s",
        "2 of 4 nodes; last call in 2.0 s",
        "3 of 4 nodes; last call in 1.0 s",
        "3 of 4 nodes; last call in 0.5 s",
    ]

    assert [sieve.lets_through("waiting", wait, None) for wait in waits] == [True, False, True, False]


def test_the_same_wait_after_something_happened_is_a_new_one() -> None:
    sieve = Sieve()

    told = [sieve.lets_through(kind, "1 of 2 nodes", None) for kind in ("waiting", "waiting", "other", "waiting")]

    assert told == [True, False, True, True]


def test_a_cluster_fact_is_let_through_once_and_local_facts_always() -> None:
    sieve = Sieve()

    assert [sieve.lets_through("k", "s", number) for number in (1, 1, 2, None, None, 1)] == [
        True,
        False,
        True,
        True,
        True,
        False,
    ]
    assert sieve.lets_through("k", "something else under an old number", 1)


def test_a_sieve_forgets_the_oldest_numbers() -> None:
    sieve = Sieve()
    for number in range(NUMBERS_REMEMBERED_MAX + 1):
        sieve.lets_through("k", "s", number)

    assert len(sieve._seen) == NUMBERS_REMEMBERED_MAX
    assert sieve.lets_through("k", "s", 0)
