"""Which worker holds which elements of a sharded array, and how they are dealt to another number. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.errors import CorruptShardError

#: From an array's path in the state, its number of elements (or units of them, see `FlatSlice`), a rank and a world
#: size to that rank's first and last.
Deal = Callable[[str, int, int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Part:
    """The elements from `start` to `stop` of an array, and the shard of a checkpoint that has them."""

    start: int
    stop: int
    shard: int


def deal_evenly(path: str, total: int, rank: int, world: int) -> tuple[int, int]:
    """Give every rank as many elements as the first, as FSDP and ZeRO do; the last ones may get fewer, or none."""
    del path
    each = -(-total // world)
    return min(rank * each, total), min((rank + 1) * each, total)


def gather(start: int, stop: int, parts: Iterable[Part], what: str = "an array") -> list[Part]:
    """Return the parts that make up a range, in order and without overlap; raises `CorruptShardError` for gaps."""
    found: list[Part] = []
    at = start
    for part in sorted(parts, key=lambda part: (part.start, -part.stop)):
        if at >= stop or part.start > at:
            break
        if part.stop > at:
            found.append(Part(at, min(part.stop, stop), part.shard))
            at = min(part.stop, stop)
    if at < stop:
        raise CorruptShardError(f"the checkpoint does not hold elements {at} to {stop} of {what}")
    return found
