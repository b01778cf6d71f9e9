"""Separators and quotes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.components.words import cut, quote, split, unquote


@given(st.lists(st.text(), min_size=1))
def test_what_is_quoted_is_read_back_whatever_is_in_it(items: list[str]) -> None:
    written = ",".join(quote(item) for item in items)

    assert [unquote(piece) for piece in split(written, ",", ",=")] == items


@given(st.text(), st.text())
def test_a_pair_is_cut_at_the_equals_sign_outside_quotes(key: str, value: str) -> None:
    pair = cut(f"{quote(key)}={quote(value)}", "=", ",=")

    assert pair is not None
    assert tuple(map(unquote, pair)) == (key, value)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a,b", ["a", "b"]),
        ('"a,b",c', ["a,b", "c"]),
        ("'a,b',c", ["a,b", "c"]),
        ("it's,isn't", ["it's", "isn't"]),
        ('say "hi, there",x', ['say "hi', 'there"', "x"]),
        ('"a"b,c', ['"a"b', "c"]),
        (r'"a\"b,c",d', ['a"b,c', "d"]),
        (r'"a\\",b', ["a\\", "b"]),
        ('"a,b', ['"a', "b"]),
        (' a , "b " ', ["a", "b "]),
        ("a\\,b", ["a\\", "b"]),
    ],
)
def test_a_quote_counts_only_around_a_whole_item(text: str, items: list[str]) -> None:
    assert [unquote(piece) for piece in split(text, ",", ",")] == items


def test_what_needs_no_quotes_gets_none() -> None:
    assert quote("mlx5_0:1") == "mlx5_0:1"
    assert quote("") == '""'


def test_there_may_be_nothing_to_cut() -> None:
    assert cut("abc", "=", ",=") is None
    assert cut('"a=b"', "=", ",=") is None
