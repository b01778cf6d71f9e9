"""Every type that a component may ask for, in every spelling."""

# ruff: noqa: UP006, UP007, UP035, UP045 - old spellings must work

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Dict, List, Literal, Optional, Tuple, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.components.annotations import UnsupportedTypeError, type_of
from holdfast.components.types import WrongValueError


class Color(enum.Enum):
    RED = "r"
    DARK_BLUE = 2


READS: list[tuple[Any, str, Any]] = [
    (int, "3", 3),
    (int, "-3", -3),
    (float, "1e-3", 0.001),
    (float, "2", 2.0),
    (str, "a,b=c", "a,b=c"),
    (str, "", ""),
    (Path, "/a/b", Path("/a/b")),
    *[(bool, word, True) for word in ("true", "True", "yes", "on", "1")],
    *[(bool, word, False) for word in ("false", "FALSE", "no", "off", "0")],
    (Optional[int], "3", 3),
    (int | None, "none", None),
    (None | int, "3", 3),
    (Optional[float], "0.5", 0.5),
    (Optional[bool], "yes", True),
    (Optional[str], "none", "none"),
    (Optional[list[int]], "1,2", [1, 2]),
    (Optional[dict[str, int]], "a=1", {"a": 1}),
    (int | str, "3", 3),
    (str | int, "3", 3),
    (str | int, "x", "x"),
    (Union[int, float], "2.5", 2.5),
    (list[str], "a,b", ["a", "b"]),
    (list[str], "", []),
    (list[str], "a,b,", ["a", "b"]),
    (list[str], '"a,b",c', ["a,b", "c"]),
    (list[str], '""', [""]),
    (list[bool], "yes,no", [True, False]),
    (list[int | None], "1,none", [1, None]),
    (List[int], "1,2", [1, 2]),
    (list, "a,b", ["a", "b"]),
    (Sequence[float], "1,2", [1.0, 2.0]),
    (list[Path], "/a,/b", [Path("/a"), Path("/b")]),
    (list[Color], "RED,2", [Color.RED, Color.DARK_BLUE]),
    (tuple[int, ...], "1,2,3", (1, 2, 3)),
    (tuple[int, str], "1,a", (1, "a")),
    (Tuple[int, str], "1,a", (1, "a")),
    (tuple, "a,b", ("a", "b")),
    (dict[str, str], "a=1,b=2", {"a": "1", "b": "2"}),
    (Dict[str, int], "a=1,b=2", {"a": 1, "b": 2}),
    (dict, "a=1", {"a": "1"}),
    (Mapping[str, bool], "a=yes", {"a": True}),
    (dict[int, float], "1=2", {1: 2.0}),
    (dict[str, str], "a=", {"a": ""}),
    (dict[str, str], "a=b=c", {"a": "b=c"}),
    (dict[str, str], "NCCL_IB_HCA=mlx5_0:1,mlx5_1:1,B=2", {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1", "B": "2"}),
    (dict[str, str], 'NCCL_IB_HCA="mlx5_0:1,mlx5_1:1",B=2', {"NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1", "B": "2"}),
    (dict[str, str], "XLA_FLAGS='--a=1,--b=2',B=3", {"XLA_FLAGS": "--a=1,--b=2", "B": "3"}),
    (dict[str, str], '"a,b"=c', {"a,b": "c"}),
    (Literal["adam", "sgd"], "sgd", "sgd"),
    (Literal["adam", "sgd"], "SGD", "sgd"),
    (Literal[1, 2], "2", 2),
    (Literal["a", None], "None", None),
    (Color, "RED", Color.RED),
    (Color, "dark_blue", Color.DARK_BLUE),
    (Color, "r", Color.RED),
    (Optional[Color], "RED", Color.RED),
    (Annotated[int, "-n"], "3", 3),
    (list[list[int]], "1,2;3", [[1, 2], [3]]),
    (list[list[int]], "[[1, 2], []]", [[1, 2], []]),
    (dict[str, list[str]], "a=x,y;b=z", {"a": ["x", "y"], "b": ["z"]}),
    (dict[str, list[str]], 'a="x;y",z', {"a": ["x;y", "z"]}),
    (dict[str, list[str]], '{"a": ["x"]}', {"a": ["x"]}),
    (list[dict[str, int]], "a=1,b=2;c=3", [{"a": 1, "b": 2}, {"c": 3}]),
    (list[tuple[str, int]], "a,1;b,2", [("a", 1), ("b", 2)]),
    (dict[str, tuple[int, int] | None], "a=1,2;b=none", {"a": (1, 2), "b": None}),
    (list[list[list[int]]], "[[[1], [2]], []]", [[[1], [2]], []]),
]


@pytest.mark.parametrize(("annotation", "text", "value"), READS, ids=str)
def test_text_becomes_a_value_of_the_right_type(annotation: Any, text: str, value: Any) -> None:
    read = type_of(annotation).read(text)

    assert read == value
    assert type(read) is type(value)


MISTAKES: list[tuple[Any, str, str]] = [
    (int, "abc", "'abc' is not int"),
    (int, "1.5", "'1.5' is not int"),
    (float, "x", "'x' is not float"),
    (bool, "maybe", "'maybe' is not bool"),
    (Optional[int], "abc", "'abc' is not int or none"),
    (Optional[list[int]], "1,x", "'x' is not int"),
    (int | float, "x", "'x' is not int or float"),
    (list[int], "1,x", "'x' is not int"),
    (list[int], "1,,2", "'' is not int"),
    (tuple[int, str], "1", "2 values are wanted, not 1"),
    (dict[str, str], "a", "'a' is not KEY=VALUE"),
    (dict[str, str], "=a", "'=a' is not KEY=VALUE"),
    (dict[str, int], "a=1,2", "'2' is not KEY=VALUE"),
    (dict[str, list[str]], "a=x;y", "'y' is not KEY=VALUE"),
    (Literal["adam", "sgd"], "lion", "'lion' is not one of adam, sgd"),
    (Color, "green", "'green' is not one of RED, DARK_BLUE"),
    (list[list[int]], "1;x", "'x' is not int"),
    (list[list[list[int]]], "1", "'1' is not list[list[list[int]]], written as JSON"),
]


@pytest.mark.parametrize(("annotation", "text", "said"), MISTAKES, ids=str)
def test_wrong_text_is_named_with_what_was_wanted(annotation: Any, text: str, said: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        type_of(annotation).read(text)

    assert str(caught.value) == said


TAKES: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, "3", 3),
    (float, 3, 3.0),
    (str, "x", "x"),
    (bool, True, True),
    (bool, "no", False),
    (Path, "/a", Path("/a")),
    (Path, Path("/a"), Path("/a")),
    (int | None, None, None),
    (list[int], [1, "2"], [1, 2]),
    (list[str], "a,b", ["a", "b"]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (dict[str, str], {"a": "b"}, {"a": "b"}),
    (dict[int, str], {"1": "b"}, {1: "b"}),
    (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
    (Color, Color.RED, Color.RED),
    (Color, "RED", Color.RED),
    (Color, 2, Color.DARK_BLUE),
    (Literal[1, 2], 2, 2),
]


@pytest.mark.parametrize(("annotation", "data", "value"), TAKES, ids=str)
def test_data_becomes_a_value_of_the_right_type(annotation: Any, data: Any, value: Any) -> None:
    taken = type_of(annotation).take(data)

    assert taken == value
    assert type(taken) is type(value)


@pytest.mark.parametrize(
    ("annotation", "data"),
    [
        (int, True),
        (int, 1.5),
        (int, None),
        (int, [1]),
        (float, True),
        (str, 3),
        (str, None),
        (bool, 1),
        (Path, 3),
        (list[int], {"a": 1}),
        (list[int], ["x"]),
        (list[str], [1]),
        (tuple[int, str], [1]),
        (dict[str, str], ["a"]),
        (dict[str, str], {"a": 1}),
        (Color, True),
        (Color, "green"),
        (Literal["a"], ["a"]),
    ],
    ids=str,
)
def test_data_of_another_type_is_refused(annotation: Any, data: Any) -> None:
    with pytest.raises(WrongValueError):
        type_of(annotation).take(data)


SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False)),
    (str, st.text()),
    (bool, st.booleans()),
    (Color, st.sampled_from(Color)),
    (Literal["a", "b,c", 3], st.sampled_from(["a", "b,c", 3])),
    (int | None, st.none() | st.integers()),
]
FLAT = [
    *[(list[kind], st.lists(values)) for kind, values in SCALARS],
    *[(tuple[kind, ...], st.lists(values).map(tuple)) for kind, values in SCALARS],
    *[(dict[str, kind], st.dictionaries(st.text(min_size=1), values)) for kind, values in SCALARS],
    (dict[int, str], st.dictionaries(st.integers(), st.text())),
    (tuple[int, str, bool], st.tuples(st.integers(), st.text(), st.booleans())),
]
NESTED = [
    *[(list[kind], st.lists(values, max_size=3)) for kind, values in FLAT],
    *[(dict[str, kind], st.dictionaries(st.text(), values, max_size=3)) for kind, values in FLAT],
]


@pytest.mark.parametrize(("annotation", "values"), [*SCALARS, *FLAT, *NESTED], ids=str)
def test_what_is_written_is_read_back(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    kind = type_of(annotation)

    @settings(max_examples=40)
    @given(values)
    def round_trip(value: Any) -> None:
        assert kind.read(kind.write(value)) == value
        assert kind.take(json.loads(json.dumps(kind.plain(value)))) == value
        assert kind.take(value) == value

    round_trip()


@pytest.mark.parametrize("annotation", [object, complex, Any, set[int], list[complex], dict[list[int], str], None])
def test_a_type_that_no_flag_can_carry_is_refused_by_name(annotation: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="cannot be"):
        type_of(annotation)


def test_lists_and_dictionaries_given_again_add_up() -> None:
    assert type_of(list[int]).add([1], [2]) == [1, 2]
    assert type_of(tuple[int, ...]).add((1,), (2,)) == (1, 2)
    assert type_of(dict[str, int] | None).add({"a": 1, "b": 1}, {"a": 2}) == {"a": 2, "b": 1}
    assert not type_of(tuple[int, int]).adds_up
    assert not type_of(int).adds_up
