"""Small values for all workers of the present round, for a `State.sync` of your own.

The names are those of the first torchelastic. They can be used inside `State.sync`, where every worker calls the same
ones in the same order.
"""

from __future__ import annotations

import struct

from holdfast.errors import UsageError
from holdfast.train.ring import Ring
from holdfast.train.trainer import current


def _ring() -> Ring:
    trainer = current()
    if trainer is None:
        raise UsageError("collectives of a training can be used inside State.sync, where all workers are together")
    return trainer.ring


def broadcast_long(value: int, src_rank: int) -> int:
    """Give all workers the integer of the worker `src_rank`."""
    return int(bytes(_ring().broadcast(str(value).encode(), src_rank)))


def broadcast_bool(value: bool, src_rank: int) -> bool:
    """Give all workers the truth value of the worker `src_rank`."""
    return bool(broadcast_long(int(value), src_rank))


def broadcast_float_list(values: list[float], src_rank: int) -> list[float]:
    """Give all workers the numbers of the worker `src_rank`."""
    data = bytes(_ring().broadcast(struct.pack(f"<{len(values)}d", *values), src_rank))
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def broadcast_binary(data: bytes | None, src_rank: int) -> bytes:
    """Give all workers the bytes of the worker `src_rank`; the others may give None."""
    return bytes(_ring().broadcast(data, src_rank))


def all_gather_return_max_long(value: int) -> tuple[int, int]:
    """Return the rank that has the greatest integer, the lowest of several, and that integer."""
    values = [int(text) for text in _ring().all_gather(str(value).encode())]
    rank = max(range(len(values)), key=lambda each: (values[each], -each))
    return rank, values[rank]
