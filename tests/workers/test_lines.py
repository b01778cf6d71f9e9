"""Lines: whole, bounded, and none lost, however the bytes come."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.workers.lines import LineCutter, Tail, last_lines, matches, readable, render_prefix

_bytes = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xff\x00", b"d" * 9])).map(b"".join)


def _cut(chunks, limit=64 * 1024):
    cutter = LineCutter(limit)
    return [line for chunk in chunks for line in cutter.feed(chunk)] + cutter.flush()


@given(_bytes, st.lists(st.integers(0, 60)))
def test_the_cuts_between_reads_do_not_matter(data, places):
    edges = sorted({0, len(data), *(place for place in places if place < len(data))})
    chunks = [data[a:b] for a, b in itertools.pairwise(edges)]

    assert _cut(chunks) == _cut([data])


@given(_bytes)
def test_no_byte_of_a_line_is_lost_and_none_is_invented(data):
    assert b"".join(_cut([data])) == re.sub(rb"[\r\n]", b"", data)


@given(_bytes, st.integers(1, 8))
def test_no_line_is_longer_than_the_limit(data, limit):
    lines = _cut([data], limit)

    assert all(len(line) <= limit for line in lines)
    assert b"".join(lines) == re.sub(rb"[\r\n]", b"", data)


def test_lines_end_with_newline_carriage_return_or_both():
    assert _cut([b"one\ntwo\r\nthree\rfour"]) == [b"one", b"two", b"three", b"four"]
    assert _cut([b"10%\r", b"20%\r", b"\n"]) == [b"10%", b"20%"]
    assert _cut([b"a\n\nb"]) == [b"a", b"", b"b"]


def test_an_unterminated_line_waits_for_its_end_or_the_flush():
    cutter = LineCutter()

    assert cutter.feed(b"half a ") == []
    assert cutter.feed(b"line\nnext") == [b"half a line"]
    assert cutter.flush() == [b"next"]
    assert cutter.flush() == []


def test_the_tail_keeps_the_last_lines_as_readable_text():
    tail = Tail(2)
    tail.add([b"one", b"two", b"\xff\x1b[31m"])

    assert tail.text() == ("two", "\\xff\\x1b[31m")
    assert len(readable(b"x" * 10_000)) == 2000
    assert last_lines(b"a\nb\nc", 2) == ("b", "c")


def test_filters_match_any_piece():
    assert matches(b"loss=3", [b"acc", b"loss"])
    assert not matches(b"loss=3", [])


def test_prefixes_are_filled_and_mistakes_show():
    values = {"role_name": "trainer", "local_rank": 1, "rank": 9, "hostname": "node7"}

    assert render_prefix("[${role_name}${local_rank}|$rank@${hostname}]:", values) == "[trainer1|9@node7]:"
    assert render_prefix("${nonsense} $5", values) == "${nonsense} $5"
