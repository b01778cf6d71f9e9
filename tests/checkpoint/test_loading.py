"""Sharded state: saved by some number of workers, loaded by any other, reading only what is needed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.layout import FlatSlice, pack
from holdfast.checkpoint.loading import load_dealt, load_whole
from holdfast.checkpoint.ranges import deal_evenly
from holdfast.errors import CorruptShardError

np = pytest.importorskip("numpy")


class Bytes:
    """A shard in plain memory that remembers how much of it was read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.nbytes = len(data)
        self.read_bytes = 0

    def read(self, start: int, stop: int) -> memoryview:
        assert 0 <= start <= stop <= self.nbytes
        self.read_bytes += stop - start
        return memoryview(self._data)[start:stop]

    def close(self) -> None:
        pass


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
dtypes = st.sampled_from(["f4", "f8", "i2", "u1", "c8"])


def sharded(arrays: dict[str, Any], rank: int, world: int, *, common: Any) -> dict[str, Any]:
    pieces = {}
    for name, array in arrays.items():
        start, stop = deal_evenly(name, array.size, rank, world)
        pieces[name] = FlatSlice(array.reshape(-1)[start:stop], start, array.shape)
    return {"model": pieces, "common": common, "list": [pieces[name] for name in pieces]}


@given(st.lists(st.tuples(shapes, dtypes), max_size=4), st.integers(1, 5), st.integers(1, 5))
def test_what_some_workers_saved_any_number_can_load(
    specs: list[tuple[tuple[int, ...], str]], before: int, after: int
) -> None:
    arrays = {f"p{n}": np.arange(np.prod(shape)).astype(dtype).reshape(shape) for n, (shape, dtype) in enumerate(specs)}
    common = {"lr": 0.1, "table": np.arange(3)}
    shards = {
        rank: Bytes(pack(sharded(arrays, rank, before, common=common), checksums=False).to_bytes())
        for rank in range(before)
    }

    loaded = [load_dealt(shards, rank, after, deal_evenly) for rank in range(after)]

    for rank, tree in enumerate(loaded):
        wanted = sharded(arrays, rank, after, common=common)
        for name, piece in wanted["model"].items():
            for got in (tree["model"][name], tree["list"][list(arrays).index(name)]):
                assert (got.start, got.shape, got.local.dtype) == (piece.start, piece.shape, piece.local.dtype)
                np.testing.assert_array_equal(got.local, piece.local)
        assert tree["common"]["lr"] == 0.1
        np.testing.assert_array_equal(tree["common"]["table"], np.arange(3))


def test_only_what_is_needed_is_read() -> None:
    whole = {"w": np.arange(1_000_000, dtype="u1")}
    shards = {rank: Bytes(pack(sharded(whole, rank, 4, common=0)).to_bytes()) for rank in range(4)}

    load_dealt(shards, 0, 8, deal_evenly)

    assert shards[0].read_bytes < 2 * 125_000 + 2000
    assert all(shards[rank].read_bytes < 2000 for rank in (1, 2, 3))


def test_the_whole_is_one_of_one() -> None:
    whole = {"w": np.arange(60.0).reshape(3, 20)}
    shards = {rank: Bytes(pack(sharded(whole, rank, 4, common=0)).to_bytes()) for rank in range(4)}

    piece = load_dealt(shards, 0, 1, deal_evenly)["model"]["w"]

    np.testing.assert_array_equal(piece.local.reshape(piece.shape), whole["w"])


def test_parts_may_be_dealt_in_any_way() -> None:
    whole = {"w": np.arange(10)}
    shards = {rank: Bytes(pack(sharded(whole, rank, 2, common=0)).to_bytes()) for rank in range(2)}

    def deal(path: str, total: int, rank: int, world: int) -> tuple[int, int]:
        assert (total, world) == (10, 3)
        return [(0, 1), (1, 9), (9, 10)][rank]

    pieces = [load_dealt(shards, rank, 3, deal)["model"]["w"] for rank in range(3)]

    assert [list(piece.local) for piece in pieces] == [[0], [1, 2, 3, 4, 5, 6, 7, 8], [9]]


def test_elements_that_no_shard_has_are_missed() -> None:
    shards = {
        0: Bytes(pack({"w": FlatSlice(np.arange(3), 0, (10,))}).to_bytes()),
        1: Bytes(pack({"w": FlatSlice(np.arange(5), 5, (10,))}).to_bytes()),
    }

    with pytest.raises(CorruptShardError, match=r"elements 3 to 10 of state\['w'\]"):
        load_dealt(shards, 0, 1, deal_evenly)


def test_shards_that_do_not_agree_on_what_is_spread_are_refused() -> None:
    shards = {
        0: Bytes(pack({"w": FlatSlice(np.arange(5), 0, (10,))}).to_bytes()),
        1: Bytes(pack({"v": FlatSlice(np.arange(5), 5, (10,))}).to_bytes()),
    }

    with pytest.raises(CorruptShardError, match="do not agree"):
        load_dealt(shards, 0, 1, deal_evenly)


@given(st.data())
def test_damage_never_makes_anything_but_a_refusal(data: st.DataObject) -> None:
    """Wherever a state without checksums of its own is cut or changed, loading ends with a tree or a refusal."""
    good = pack({"w": FlatSlice(np.arange(8), 0, (8,)), "x": [1, "a", None]}, checksums=False).to_bytes()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(bad[: data.draw(st.integers(0, len(bad)))])

    class Lax(Bytes):
        def read(self, start: int, stop: int) -> memoryview:
            return memoryview(self._data)[start:stop]

    for load in (load_whole, lambda shard: load_dealt({0: shard}, 0, 2, deal_evenly)):
        try:
            load(Lax(cut))
        except CorruptShardError:
            pass
