"""Checksums of a state, block by block, so that any part of it can be checked without reading the rest. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.errors import CorruptShardError

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Checksums:
    """The size of a state, and the CRC-32 of each of its blocks."""

    nbytes: int
    crcs: tuple[int, ...]
    block_bytes: int = BLOCK_BYTES

    def check(self, start: int, data: memoryview) -> None:
        """Raise `CorruptShardError` unless these blocks, which begin at `start`, are as they were written."""
        assert start % self.block_bytes == 0
        for number, (_, block) in enumerate(blocks(data, self.block_bytes), start // self.block_bytes):
            if number >= len(self.crcs) or zlib.crc32(block) != self.crcs[number]:
                raise CorruptShardError(
                    f"the state is damaged: its bytes from {number * self.block_bytes} on are not as written"
                )

    def around(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of whole blocks that holds a range of bytes."""
        first = start - start % self.block_bytes
        return first, min(self.nbytes, stop + -stop % self.block_bytes)


def checksum(state: memoryview, block_bytes: int = BLOCK_BYTES) -> Checksums:
    """Return the checksums of a state."""
    return Checksums(len(state), tuple(zlib.crc32(block) for _, block in blocks(state, block_bytes)), block_bytes)


def blocks(data: memoryview, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, memoryview]]:
    """Cut bytes into blocks, each with where it begins."""
    for start in range(0, len(data), block_bytes):
        yield start, data[start : start + block_bytes]
