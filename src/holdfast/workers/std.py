"""`Std`: a choice of a worker's two streams, as one number or by local rank."""

from __future__ import annotations

from enum import IntFlag

from holdfast.errors import UsageError


class Std(IntFlag):
    """Stdout, stderr, both or neither."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Read `"3"` or a map such as `"0:1,12:3"` from local ranks to numbers."""
        text = vm.strip()
        try:
            if ":" not in text:
                return _std(text)
            pairs = [item.split(":") for item in text.split(",")]
            return {_number(rank): _std(value) for rank, value in pairs}
        except ValueError:
            raise UsageError(
                f"{vm!r} names no streams: write 0 (none), 1 (stdout), 2 (stderr), 3 (both), or a map like 0:1,1:3"
            ) from None


def _std(text: str) -> Std:
    if _number(text) > Std.ALL:  # a flag would keep bits that mean nothing
        raise ValueError(text)
    return Std(_number(text))


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(text)
    return int(text)


def to_map(val_or_map: Std | dict[int, Std], local_world_size: int) -> dict[int, Std]:
    """Give every local rank its own value; those that a map leaves out get `Std.NONE`."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
