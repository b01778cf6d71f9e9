"""From shards to a tree: a worker's own shard, or its part of a state that another number of workers saved.

Only the necessary bytes are read: the headers of all shards, and of each sharded array the elements that this worker
gets. Everything else comes from one shard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint.layout import START, FlatSlice, build, make_array, offsets, padding, read_header, unpack
from holdfast.checkpoint.ranges import Deal, Part, gather
from holdfast.checkpoint.tier import Shard
from holdfast.errors import CorruptShardError


@dataclass(frozen=True, slots=True)
class _Spread:
    """One shard's part of a sharded array: which elements it has, and where in its bytes they are."""

    start: int
    stop: int
    total: int
    #: So many elements stay together.
    unit: int
    offset: int
    described: dict[str, Any]


def load_whole(shard: Shard) -> Any:
    """Return the tree of one shard; a shard in memory is used, not copied."""
    return _guarded(lambda: unpack(shard.read(0, shard.nbytes), verify=False))


def load_dealt(shards: Mapping[int, Shard], rank: int, world: int, deal: Deal) -> Any:
    """Return this rank's part of a state that was saved by another number of workers."""
    return _guarded(lambda: _Dealer(shards, rank, world, deal).tree())


def _guarded(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (KeyError, IndexError, TypeError, ValueError) as error:  # an undamaged header that makes no sense
        raise CorruptShardError(f"the state's header is invalid: {type(error).__name__}: {error}") from None


class _Dealer:
    def __init__(self, shards: Mapping[int, Shard], rank: int, world: int, deal: Deal) -> None:
        self._shards = shards
        self._rank = rank
        self._world = world
        self._deal = deal
        self._headers = {number: _read_header(shard) for number, shard in shards.items()}
        self._spread = {number: _find_spread(header, start) for number, (header, start) in self._headers.items()}

    def tree(self) -> Any:
        base = self._rank % len(self._shards)
        header, start = self._headers[base]
        spread = self._spread[base]
        for number, other in self._spread.items():
            if other.keys() != spread.keys():
                odd = sorted(other.keys() ^ spread.keys())[0]
                raise CorruptShardError(
                    f"shards {base} and {number} do not agree on what is spread over workers: {odd}"
                )
        mine = {path: self._range(path, each) for path, each in spread.items()}
        numbers = {number: path for path, number in _walk(header["tree"])}
        arrays = []
        for number, (described, at) in enumerate(zip(header["arrays"], offsets(header, start), strict=True)):
            if number in numbers:
                path = numbers[number]
                arrays.append(self._assemble(path, *mine[path]))
            else:
                arrays.append(make_array(described, self._shards[base].read(at, at + described["nbytes"])))
        return _rebased(build(header["tree"], arrays), mine)

    def _range(self, path: str, spread: _Spread) -> tuple[int, int]:
        """Return which elements this rank gets; units are dealt out as a whole."""
        start, stop = self._deal(path, spread.total // spread.unit, self._rank, self._world)
        return start * spread.unit, stop * spread.unit

    def _assemble(self, path: str, start: int, stop: int) -> Any:
        """Return the elements from `start` to `stop` of an array, collected from the shards that have them."""
        parts = [Part(each.start, each.stop, number) for number, each in self._by_shard(path)]
        wanted = gather(start, stop, parts, path)
        known = dict(self._by_shard(path))
        described = next((each.described for each in known.values() if each.stop > each.start), None)
        described = described or next(iter(known.values())).described
        item = _item_bytes(described)
        pieces = []
        for part in wanted:
            held = known[part.shard]
            at = held.offset + (part.start - held.start) * item
            pieces.append(self._shards[part.shard].read(at, at + (part.stop - part.start) * item))
        data = pieces[0] if len(pieces) == 1 else memoryview(bytearray(b"".join(pieces)))
        return make_array({**described, "shape": [stop - start], "nbytes": len(data)}, data)

    def _by_shard(self, path: str) -> Iterator[tuple[int, _Spread]]:
        for number, spread in self._spread.items():
            yield number, spread[path]


def _read_header(shard: Shard) -> tuple[dict[str, Any], int]:
    start = shard.read(0, min(START.size, shard.nbytes))
    length = START.unpack(start)[3] if len(start) == START.size else 0
    end = START.size + length
    return read_header(shard.read(0, min(end + padding(end), shard.nbytes)))


def _find_spread(header: dict[str, Any], start: int) -> dict[str, _Spread]:
    places = offsets(header, start)
    slices = _slices(header["tree"])
    found = {}
    for path, number in _walk(header["tree"]):
        described = header["arrays"][number]
        first, shape, unit = slices[path]
        count = math.prod(described["shape"])
        total = math.prod(shape)
        if unit < 1 or total % unit:
            raise ValueError(f"{total} elements in units of {unit}")
        found[path] = _Spread(first, first + count, total, unit, places[number], described)
    return found


def _slices(described: Any, path: str = "state") -> dict[str, tuple[int, list[int], int]]:
    found: dict[str, tuple[int, list[int], int]] = {}
    for where, node in _nodes(described, path):
        found[where] = (node[2], node[3], node[4] if len(node) > 4 else 1)
    return found


def _walk(described: Any) -> Iterator[tuple[str, int]]:
    """Yield the path of every sharded array, and its number in the header."""
    for path, node in _nodes(described, "state"):
        yield path, node[1][1]


def _nodes(described: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    if not isinstance(described, list):
        return
    match described:
        case ["slice", *_]:
            yield path, described
        case ["dict", *items]:
            for key, item in items:
                yield from _nodes(item, f"{path}[{key!r}]")
        case ["list" | "tuple", *items]:
            for index, item in enumerate(items):
                yield from _nodes(item, f"{path}[{index}]")


def _rebased(tree: Any, mine: Mapping[str, tuple[int, int]], path: str = "state") -> Any:
    """Return the tree with every sharded array starting where this rank's part does."""
    if isinstance(tree, FlatSlice):
        return replace(tree, start=mine[path][0])
    if isinstance(tree, dict):
        return {key: _rebased(item, mine, f"{path}[{key!r}]") for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_rebased(item, mine, f"{path}[{index}]") for index, item in enumerate(tree))
    return tree


def _item_bytes(described: dict[str, Any]) -> int:
    count = math.prod(described["shape"])
    return int(described["nbytes"]) // count if count else 0
