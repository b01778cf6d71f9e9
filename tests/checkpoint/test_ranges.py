"""Ranges: who has which elements, and how they are dealt anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.ranges import Part, deal_evenly, gather
from holdfast.errors import CorruptShardError


@given(st.integers(0, 1000), st.integers(1, 12))
def test_every_element_is_dealt_once(total: int, world: int) -> None:
    dealt = [deal_evenly("x", total, rank, world) for rank in range(world)]

    assert [element for start, stop in dealt for element in range(start, stop)] == list(range(total))


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 5), st.data())
def test_parts_are_gathered_in_order_and_without_overlap(total: int, old: int, new: int, data: st.DataObject) -> None:
    parts = [Part(*deal_evenly("x", total, shard, old), shard) for shard in range(old)]
    start, stop = deal_evenly("x", total, data.draw(st.integers(0, new - 1)), new)

    found = gather(start, stop, data.draw(st.permutations(parts)))

    assert [element for part in found for element in range(part.start, part.stop)] == list(range(start, stop))


def test_elements_that_no_shard_has_are_named() -> None:
    with pytest.raises(CorruptShardError, match="elements 3 to 8 of weights"):
        gather(0, 8, [Part(0, 3, 0), Part(5, 8, 1)], "weights")
