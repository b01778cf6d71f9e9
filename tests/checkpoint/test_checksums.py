"""Checksums by block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.checksums import Checksums, checksum
from holdfast.errors import CorruptShardError


@given(st.binary(min_size=1, max_size=100), st.integers(1, 10), st.data())
def test_one_changed_byte_is_found(data: bytes, block: int, draw: st.DataObject) -> None:
    sums = checksum(memoryview(data), block)
    at = draw.draw(st.integers(0, len(data) - 1))
    damaged = bytearray(data)
    damaged[at] ^= 0x10

    sums.check(0, memoryview(data))
    with pytest.raises(CorruptShardError, match="damaged"):
        sums.check(0, memoryview(damaged))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_a_range_grows_to_whole_blocks(start: int, length: int, block: int) -> None:
    sums = Checksums(100, (), block)

    first, last = sums.around(start, start + length)

    assert first <= start <= start + length <= last <= 100
    assert first % block == 0
    assert last % block == 0 or last == 100
