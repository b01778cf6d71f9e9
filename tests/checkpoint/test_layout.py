"""The layout: what goes in comes out, and what is not whole is refused."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.layout import CorruptShardError, opening, pack, unpack
from holdfast.errors import UsageError

np = pytest.importorskip("numpy")

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=20,
)


@given(trees)
def test_plain_data_comes_back_as_it_was(tree: Any) -> None:
    back = unpack(pack(tree).to_bytes())

    assert back == tree
    assert type(back) is type(tree)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype="f4").reshape(3, 4),
        np.zeros((0, 3), "i8"),
        np.array(7.5),
        np.float32(2.5),
        np.arange(10)[::2],
        np.array([True, False]),
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.array([1 + 2j]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_arrays_come_back_with_their_bits(array: Any) -> None:
    back = unpack(pack({"a": array}).to_bytes())["a"]

    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_numbers_that_json_cannot_say_are_kept() -> None:
    back = unpack(pack([math.inf, -math.inf, math.nan]).to_bytes())

    assert back[:2] == [math.inf, -math.inf]
    assert math.isnan(back[2])


def test_arrays_are_read_where_they_lie() -> None:
    data = bytearray(pack({"a": np.zeros(1000)}).to_bytes())

    array = unpack(data)["a"]

    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    assert array.__array_interface__["data"][0] % 8 == 0


@given(st.data())
def test_a_state_that_is_cut_off_or_changed_anywhere_is_refused(data: st.DataObject) -> None:
    whole = pack({"weights": np.arange(50.0), "step": 3}).to_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
    broken = whole[:at] if data.draw(st.booleans()) else changed

    try:
        back = unpack(broken)
    except CorruptShardError:
        return
    # Only padding may be lost or changed without anybody noticing: it holds nothing.
    assert back["step"] == 3
    assert back["weights"].tolist() == list(range(50))


@pytest.mark.parametrize(
    ("tree", "place"),
    [
        ({"model": {"f": print}}, "['model']['f']"),
        ([object()], "[0]"),
        ({"s": {1, 2}}, "['s']"),
        ({b"k": 1}, "key of type bytes"),
        ({"a": np.array([object()])}, "Python objects"),
    ],
)
def test_what_is_no_data_is_refused_with_its_place(tree: Any, place: str) -> None:
    with pytest.raises(UsageError) as refused:
        pack(tree)

    assert place in str(refused.value)


def test_something_else_is_not_taken_for_a_state() -> None:
    with pytest.raises(CorruptShardError, match="not a state that Holdfast wrote"):
        unpack(b"PK\x03\x04" + bytes(100))


def header_of(header: Any) -> bytes:
    """Return a state with a header that no program of ours would write, and with the right checksum."""
    return opening(header if isinstance(header, bytes) else json.dumps(header).encode()) + bytes(64)


@pytest.mark.parametrize(
    "header",
    [
        b"no json",
        b"[" * 100_000,
        [],
        {},
        {"tree": None},
        {"tree": None, "arrays": 1},
        {"arrays": []},
        {"tree": None, "arrays": [{}]},
        {"tree": ["array", 0], "arrays": [{"kind": "numpy", "dtype": "|O", "shape": [1], "nbytes": 8}]},
        {"tree": ["array", 0], "arrays": [{"kind": "numpy", "dtype": "__class__", "shape": [1], "nbytes": 8}]},
        {"tree": ["array", 0], "arrays": [{"kind": "numpy", "dtype": "<f8", "shape": [-1], "nbytes": 8}]},
        {"tree": ["array", 0], "arrays": [{"kind": "numpy", "dtype": "<f8", "shape": [1 << 62], "nbytes": 8}]},
        {"tree": ["array", 0], "arrays": [{"kind": "numpy", "dtype": "<f8", "shape": ["1"], "nbytes": 8}]},
        {"tree": ["array", 0], "arrays": [{"kind": "numpy", "dtype": "<f8", "shape": [1], "nbytes": -8}]},
        {"tree": ["array", 0], "arrays": [{"kind": "os", "dtype": "<f8", "shape": [1], "nbytes": 8}]},
        {"tree": ["array", 7], "arrays": []},
        {"tree": ["array"], "arrays": []},
        {"tree": [], "arrays": []},
        {"tree": ["dict", [["list"], 1]], "arrays": []},
        {"tree": ["dict", 3], "arrays": []},
        {"tree": ["bytes", "A"], "arrays": []},
        {"tree": ["float", "x"], "arrays": []},
        {"tree": ["code", "import os"], "arrays": []},
    ],
)
def test_a_header_that_describes_no_state_is_refused(header: Any) -> None:
    with pytest.raises(CorruptShardError):
        unpack(header_of(header))


def test_torch_is_not_imported_for_arrays_of_numpy() -> None:
    before = set(sys.modules)
    unpack(pack({"a": np.zeros(3)}).to_bytes())

    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] in ("torch", "jax")}
