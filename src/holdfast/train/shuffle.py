"""A shuffled order of any number of samples, without ever writing it down. Pure.

Each position is turned into a sample by a small Feistel network: a bijection that needs no memory, gives the same order
on every machine and version, and can be asked for any position at once. Positions beyond the end are walked on until
they fall inside, which keeps it a bijection.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_ROUNDS = 4


def _mix(value: int) -> int:
    """Scatter 64 bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


class Shuffle:
    """One order of `count` samples, chosen by `seed` and `epoch`."""

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self._count = count
        self._half = max((count - 1).bit_length() + 1, 2) // 2
        self._low = (1 << self._half) - 1
        start = _mix((seed ^ 0x9E3779B97F4A7C15) & _MASK) ^ _mix(epoch + 1)
        self._keys = [_mix(start + number * 0x9E3779B97F4A7C15 & _MASK) for number in range(1, _ROUNDS + 1)]

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
