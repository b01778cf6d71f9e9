"""What several nodes wrote becomes one story."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.events.entry import Entry, Line, encode
from holdfast.events.journal import JournalReader
from holdfast.events.story import Columns, Filters, Merger, Told, after_start, length_of
from holdfast.events.times import parse_time


def line(kind: str, time: float, number: int | None = None, host: str | None = None, **fields: Any) -> Line:
    entry = Entry(time=time, kind=kind, sentence=fields.pop("sentence", kind), number=number, host=host, **fields)
    return Line(entry, encode(entry))


def kinds(told: list[Told]) -> list[str]:
    return [each.entry.kind for each in told]


# -- order ----------------------------------------------------------------------------------------------------------


def test_cluster_facts_stand_once_and_in_the_order_of_their_numbers() -> None:
    one = [line("sealed", 10, 1), line("broken", 11, 2)]
    other = [line("sealed", 10, 1), line("broken", 11, 2), line("closed", 12, 3)]

    assert kinds(Merger().merge({"a": one, "b": other})) == ["sealed", "broken", "closed"]


def test_clocks_that_differ_by_hours_do_not_disturb_the_order() -> None:
    """Host b's clock is an hour ahead; its workers fail after the seal and before the round breaks, as on host a."""
    a = [
        line("sealed", 10, 1),
        line("a_started", 10.5, host="a"),
        line("broken", 12, 2),
        line("a_stopped", 13, host="a"),
    ]
    b = [
        line("b_waits", 3609, host="b"),
        line("sealed", 10, 1),
        line("b_failed", 3611, host="b"),
        line("broken", 12, 2),
    ]

    told = kinds(Merger().merge({"a": a, "b": b}))

    assert told == ["b_waits", "sealed", "a_started", "b_failed", "broken", "a_stopped"]


def test_a_cluster_fact_that_reached_a_node_a_moment_late_stands_where_its_time_says() -> None:
    told = Merger().merge(
        {"a": [line("failed", 10.00, host="a"), line("stopped", 10.05, host="a"), line("broken", 10.02, 1)]}
    )

    assert kinds(told) == ["failed", "broken", "stopped"]


def test_what_a_node_does_after_a_cluster_fact_stands_after_it_though_its_clock_is_behind() -> None:
    told = Merger().merge(
        {
            "a": [line("sealed", 10, 1), line("broken", 20, 2)],
            "b": [line("sealed", 10, 1), line("b_started", 3, host="b")],
        }
    )

    assert kinds(told) == ["sealed", "b_started", "broken"]


def test_without_numbers_times_decide() -> None:
    a, b = [line("one", 1, host="a"), line("three", 3, host="a")], [line("two", 2, host="b")]

    assert kinds(Merger().merge({"a": a, "b": b})) == ["one", "two", "three"]


def test_a_clock_that_is_set_back_does_not_turn_a_journal_around() -> None:
    assert kinds(Merger().merge({"a": [line("one", 100), line("two", 50), line("three", 60)]})) == [
        "one",
        "two",
        "three",
    ]


def test_what_is_added_later_is_merged_with_what_was_told_before() -> None:
    merger = Merger()
    merger.merge({"a": [line("sealed", 1, 1, data={"round": 1})]})

    told = merger.merge({"b": [line("sealed", 1, 1, data={"round": 1})], "a": [line("failed", 2, host="a")]})

    assert [(each.entry.kind, each.round) for each in told] == [("failed", 1)]


def test_a_line_belongs_to_the_round_that_its_journal_was_in() -> None:
    told = Merger().merge(
        {
            "a": [
                line("waiting", 1),
                line("workers_started", 2, data={"round": 1}),
                line("worker_failed", 3),
                line("workers_started", 4, data={"round": 2}),
                line("odd", 5, data={"round": "three"}),
            ]
        }
    )

    assert [each.round for each in told] == [None, 1, 1, 2, 2]


# -- filters --------------------------------------------------------------------------------------------------------


LINES = Merger().merge(
    {
        "a": [
            line("round_sealed", 10, 1, data={"round": 1}),
            line("worker_failed", 20, host="host-a", node="n1", level="error", sentence="Rank 1 failed"),
            line("node_gone", 30, 2, level="warning", data={"host": "host-b", "node": "n2"}),
            line("round_sealed", 40, 3, data={"round": 2, "joined": ["host-c"], "failure": {"host": "host-d"}}),
            line("journal_closed", 50, host="host-a"),
        ]
    }
)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (Filters(), [10, 20, 30, 40]),
        (Filters(kinds=("round_*",)), [10, 40]),
        (Filters(kinds=("node_gone", "*_failed")), [20, 30]),
        (Filters(kinds=("journal_closed",)), [50]),
        (Filters(level="warning"), [20, 30]),
        (Filters(level="error"), [20]),
        (Filters(nodes=("host-a",)), [20]),
        (Filters(nodes=("host-b",)), [30]),
        (Filters(nodes=("n1", "n2")), [20, 30]),
        (Filters(nodes=("host-c",)), [40]),
        (Filters(nodes=("host-d",)), [40]),
        (Filters(nodes=("host-*",)), [20, 30, 40]),
        (Filters(rounds=frozenset({1})), [10, 20, 30]),
        (Filters(rounds=frozenset({2})), [40]),
        (Filters(since=20, until=30), [20, 30]),
        (Filters(grep=re.compile("rank", re.IGNORECASE)), [20]),
        (Filters(kinds=("round_*",), rounds=frozenset({2}), since=50), []),
    ],
)
def test_filters_leave_what_was_asked_for(filters: Filters, wanted: list[float]) -> None:
    assert [told.entry.time for told in LINES if filters.let_through(told)] == wanted


# -- words ----------------------------------------------------------------------------------------------------------


def test_lines_are_told_in_columns() -> None:
    columns = Columns(after_start(10.0), lambda entry: entry.host or "")
    told = [
        Told(Entry(time=10.0, kind="k", sentence="sealed", data={"duration_ms": 1234.5}), b"", 1),
        Told(Entry(time=75.5, kind="k", sentence="broke", level="warning", host="host-a"), b"", 12),
        Told(Entry(time=9.5, kind="k", sentence="early", level="error"), b"", None),
    ]

    assert [columns.tell(each) for each in told] == [
        "      +0ms      r1  sealed (1.2s)",
        "    +1m06s  !  r12  host-a  broke",
        "    -500ms !!               early",
    ]


def test_a_duration_that_the_sentence_tells_is_not_told_twice() -> None:
    told = Told(Entry(time=0, kind="k", sentence="agreed after 3 ms", data={"duration_ms": 3}), b"", None)

    assert Columns(after_start(0), lambda _: "").tell(told).endswith("agreed after 3 ms")


def test_a_sentence_of_several_lines_stays_together_and_cannot_write_over_the_screen() -> None:
    told = Told(Entry(time=0, kind="k", sentence="one\ntwo\tx\x1b[2J\r\x9b3\n"), b"", None)

    text = Columns(after_start(0), lambda _: "").tell(told)

    first, second = text.split("\n")
    assert first.endswith("  one")
    assert second == " " * first.index("one") + "two x�[2J��3"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.35, "350ms"), (3.25, "3.2s"), (59.94, "59.9s"), (59.96, "1m00s"), (245, "4m05s"), (3725, "1h02m")],
)
def test_lengths_of_time_are_told_for_people(seconds: float, text: str) -> None:
    assert length_of(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 86400 - 600),
        ("90", 86400 - 90),
        ("14:05", 14 * 3600 + 300),
        ("9:05:30", 9 * 3600 + 330),
        ("1970-01-01T00:00:10", 10),
        ("1970-01-02", 86400),
    ],
)
def test_times_are_read_as_people_write_them(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import datetime

    midnight = datetime(1970, 1, 1).timestamp()  # by this host's clock

    assert parse_time(text, midnight + 86400, midnight + 100) == midnight + seconds


@pytest.mark.parametrize("text", ["soon", "25:00", "1:2:3:4", "2026-13-01", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        parse_time(text, 0, 0)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_a_reader_goes_on_where_it_stopped_and_waits_for_the_rest_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = line("one", 1).text
    path.write_bytes(whole + b"\n" + whole[:10])
    reader = JournalReader(path)

    assert len(list(reader.read())) == 1
    assert reader.torn
    assert list(reader.read()) == []

    with path.open("ab") as file:
        file.write(whole[10:] + b"\n\nno json\n")
    assert [each.text for each in reader.read()] == [whole]
    assert (reader.torn, reader.unreadable) == (False, 1)
