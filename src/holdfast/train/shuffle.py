"""A shuffled order of any number of samples, without storing it. Pure.

Each position is turned into a sample by a small Feistel network: a bijection that needs no memory, gives the same order
on every machine and version, and can be asked for any position at once. Positions beyond the end are walked on until
they fall inside, which keeps it a bijection.
"""

from __future__ import annotations

import sys
from typing import Any

_MASK = (1 << 64) - 1
_ROUNDS = 4
#: Where numpy is loaded anyway, so many positions are turned at once; the order is the same.
_BLOCK = 4096


def _mix(value: int) -> int:
    """Scatter 64 bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _mix_all(numpy: Any, values: Any) -> Any:
    """Do the same to many numbers at once."""
    values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return values ^ (values >> numpy.uint64(31))


class Shuffle:
    """One order of `count` samples, chosen by `seed` and `epoch`."""

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self._count = count
        self._half = max((count - 1).bit_length() + 1, 2) // 2
        self._low = (1 << self._half) - 1
        start = _mix((seed ^ 0x9E3779B97F4A7C15) & _MASK) ^ _mix(epoch + 1)
        self._keys = [_mix(start + number * 0x9E3779B97F4A7C15 & _MASK) for number in range(1, _ROUNDS + 1)]
        self._block: tuple[int, list[int]] = (-1, [])

    def take(self, start: int, stop: int) -> tuple[int, ...]:
        """Return the samples at the positions from `start` up to `stop`."""
        numpy: Any = sys.modules.get("numpy")
        if numpy is None:
            return tuple(self[position] for position in range(start, stop))
        found: list[int] = []
        while start < stop:
            number, offset = divmod(start, _BLOCK)
            if self._block[0] != number:
                self._block = (number, self._turn(numpy, number))
            taken = self._block[1][offset : offset + stop - start]
            if not taken:
                raise IndexError(f"position {start} of {self._count}")
            found += taken
            start += len(taken)
        return tuple(found)

    def _turn(self, numpy: Any, number: int) -> list[int]:
        """Turn a whole block of positions into samples."""
        first = number * _BLOCK
        found = numpy.arange(first, max(min(first + _BLOCK, self._count), first), dtype=numpy.uint64)
        half, low = numpy.uint64(self._half), numpy.uint64(self._low)
        left = numpy.ones(len(found), bool)
        while left.any():
            high, right = found[left] >> half, found[left] & low
            for key in self._keys:
                high, right = right, high ^ (_mix_all(numpy, right + numpy.uint64(key)) & low)
            found[left] = high << half | right
            left = found >= self._count
        return found.tolist()  # type: ignore[no-any-return]

    def __getitem__(self, position: int) -> int:
        """Return the sample at a position."""
        if not 0 <= position < self._count:
            raise IndexError(f"position {position} of {self._count}")
        while True:
            left, right = position >> self._half, position & self._low
            for key in self._keys:
                left, right = right, left ^ (_mix(right + key & _MASK) & self._low)
            position = left << self._half | right
            if position < self._count:
                return position
