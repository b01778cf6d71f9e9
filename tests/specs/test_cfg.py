"""The grammar of run options on one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.specs.cfg import split_pairs, to_bool, to_dict, to_list, unquote


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", []),
        ("  ", []),
        ("a=1", [("a", "1")]),
        ("a=1,b=2", [("a", "1"), ("b", "2")]),
        ("a=1;b=2", [("a", "1"), ("b", "2")]),
        (" a = 1 , b = 2 ", [("a", "1"), ("b", "2")]),
        # The last separator before the next key ends the value; those before it belong to it.
        ("a=x,y,b=2", [("a", "x,y"), ("b", "2")]),
        ("a=x;y;b=2", [("a", "x;y"), ("b", "2")]),
        ("a=x,y;b=2", [("a", "x,y"), ("b", "2")]),
        ("a=x;y,b=2", [("a", "x;y"), ("b", "2")]),
        ("a=1,", [("a", "1")]),
        ("a=,b=2", [("a", ""), ("b", "2")]),
        ("a=", [("a", "")]),
        # A key can only begin after a separator, so a value may hold `=`.
        ("a=--lr=1,b=2", [("a", "--lr=1"), ("b", "2")]),
        ("url=http://h:1/?q=1,b=2", [("url", "http://h:1/?q=1"), ("b", "2")]),
        ("d=k:x=1,l:y=2,b=2", [("d", "k:x=1,l:y=2"), ("b", "2")]),
        ("a='x,b=2',c=3", [("a", "'x,b=2'"), ("c", "3")]),
        ('a="x;y",c=3', [("a", '"x;y"'), ("c", "3")]),
        ("a=it's,b=don't", [("a", "it's"), ("b", "don't")]),
        ("a=1,a=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_pairs_are_split_at_the_last_separator_before_the_next_key(text: str, pairs: list[tuple[str, str]]) -> None:
    assert split_pairs(text) == pairs


@pytest.mark.parametrize("text", ["a", "a,b=1", "=1", "'a=1'", "a:b=1"])
def test_what_has_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form key=value"):
        split_pairs(text)


def test_items_of_a_list_are_separated_by_either_sign_unless_quoted() -> None:
    assert to_list("a,b;c") == ["a", "b", "c"]
    assert to_list("a, 'x,y' ;\"z;1\"") == ["a", "x,y", "z;1"]
    assert to_list("") == []


def test_entries_of_a_dict_are_split_at_their_first_colon() -> None:
    assert to_dict("a:1,b:http://h:2;c:'x,y'") == {"a": "1", "b": "http://h:2", "c": "x,y"}
    assert to_dict("") == {}
    with pytest.raises(ValueError, match="'b' is not of the form key:value"):
        to_dict("a:1,b")


def test_only_words_that_say_so_are_true_or_false() -> None:
    assert [to_bool(word) for word in ("true", "True", "1", "yes", "on")] == [True] * 5
    assert [to_bool(word) for word in ("false", "FALSE", "0", "no", "off")] == [False] * 5
    for word in ("", "maybe", "2", "y"):
        with pytest.raises(ValueError, match="neither true nor false"):
            to_bool(word)


KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]*", fullmatch=True)
PLAIN = st.text(st.characters(exclude_characters="'\",;=:", categories=["L", "N", "P", "S"]), min_size=1)
QUOTED = st.text(st.characters(exclude_characters="'", exclude_categories=["Cs"]))


@given(st.dictionaries(KEYS, QUOTED), st.sampled_from([",", ";"]))
def test_whatever_stands_in_quotes_comes_back_as_it_was(values: dict[str, str], separator: str) -> None:
    text = separator.join(f"{key}='{value}'" for key, value in values.items())

    assert {key: unquote(value) for key, value in split_pairs(text)} == values


@given(st.lists(st.one_of(PLAIN, QUOTED.map(lambda text: f"'{text}'")), min_size=1), st.data())
def test_a_list_comes_back_whatever_separates_its_items(items: list[str], data: st.DataObject) -> None:
    text = "".join(item + data.draw(st.sampled_from([",", ";"])) for item in items) + "next=1"

    (key, value), rest = split_pairs(f"first={text}")

    assert (key, rest) == ("first", ("next", "1"))
    assert to_list(value) == [unquote(item) for item in items]


@given(st.text())
def test_no_text_makes_the_grammar_fall_over(text: str) -> None:
    try:
        pairs = split_pairs(text)
    except ValueError:
        return
    for key, value in pairs:
        assert key
        to_list(value)
