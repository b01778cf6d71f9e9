"""The layout of state in bytes: a header in JSON, then the arrays as they are in memory.

The same bytes go over the ring to a newcomer, to a neighbour's memory and to a file. They contain no code: a value that
is neither plain data nor an array is refused when it is written. Reading makes no copy of the arrays. An array may have
a checksum of its own; a checkpoint's tiers have checksums over all bytes instead (`holdfast.checkpoint.checksums`), so
that saving does not wait for them.

    magic, version, length of the header │ header │ zeros up to a multiple of 64 │ array │ zeros │ array │ ...
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CorruptShardError as CorruptShardError
from holdfast.errors import UsageError

MAGIC = b"HOLDFAST"
VERSION = 1
ALIGN = 64
HEADER_BYTES_MAX = 1 << 30
START = struct.Struct("<8sIIQ")


@dataclass(frozen=True, slots=True)
class FlatSlice:
    """One worker's part of a sharded array: `local` has its elements from `start` on.

    Elements are counted as in the flattened whole, which has this `shape`. Such an array can be restored by any number
    of workers (`holdfast.checkpoint.Checkpointer.restore`). So many elements as `unit` says stay together, such as a
    row. `dim` is the dimension of the program's array that comes first here, because it is split along it.
    """

    local: Any
    start: int
    shape: tuple[int, ...]
    unit: int = 1
    dim: int = 0


@dataclass(frozen=True, slots=True)
class Leaf:
    """How one kind of array is written and read.

    `view` returns the dtype's name, the shape and the bytes of an array, without a copy if possible; `make` builds
    one from them, and may keep using their memory.
    """

    kind: str
    view: Callable[[Any], tuple[str, tuple[int, ...], memoryview]]
    make: Callable[[str, tuple[int, ...], memoryview], Any]


@dataclass(frozen=True)
class Packed:
    """A state as bytes in pieces. The arrays are not copied: they must not change while it is used."""

    header: bytes
    arrays: list[memoryview]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return sum(len(piece) for piece in self.pieces())

    def pieces(self) -> Iterator[memoryview]:
        """Yield all bytes, in order."""
        yield memoryview(opening(self.header))
        for array in self.arrays:
            yield array
            yield memoryview(bytes(padding(len(array))))

    def to_bytes(self) -> bytes:
        """Return all bytes in one piece."""
        return b"".join(self.pieces())


def pack(tree: Any, *, checksums: bool = True) -> Packed:
    """Describe a tree of dicts, lists, tuples, plain values and arrays; raises `UsageError` for anything else."""
    entries: list[dict[str, Any]] = []
    views: list[memoryview] = []

    def add(leaf: Leaf, value: Any) -> int:
        dtype, shape, view = leaf.view(value)
        entries.append(entry(leaf, dtype, shape, len(view), zlib.crc32(view) if checksums else None))
        views.append(view)
        return len(entries) - 1

    described = describe(tree, add)
    return Packed(write_header(described, entries), views)


def opening(header: bytes) -> bytes:
    """Return all that comes before the first array."""
    start = START.pack(MAGIC, VERSION, zlib.crc32(header), len(header)) + header
    return start + bytes(padding(len(start)))


def entry(leaf: Leaf, dtype: str, shape: tuple[int, ...], nbytes: int, crc: int | None = None) -> dict[str, Any]:
    """Return the header's entry for one array."""
    found: dict[str, Any] = {"kind": leaf.kind, "dtype": dtype, "shape": list(shape), "nbytes": nbytes}
    return found if crc is None else {**found, "crc": crc}


def write_header(described: Any, entries: list[dict[str, Any]]) -> bytes:
    """Return the header for a described tree and its arrays."""
    return json.dumps({"tree": described, "arrays": entries}, separators=(",", ":"), allow_nan=False).encode()


def unpack(data: bytes | bytearray | memoryview, *, verify: bool = True) -> Any:
    """Return the tree; its arrays use the memory of `data`. Raises `CorruptShardError` if it is not whole."""
    view = memoryview(data).cast("B")
    header, offset = read_header(view)
    arrays = []
    for each in header["arrays"]:
        piece = view[offset : offset + each["nbytes"]]
        if len(piece) < each["nbytes"]:
            raise CorruptShardError(
                f"the state is cut off: {each['nbytes'] - len(piece)} bytes of an array are missing"
            )
        if verify and each.get("crc") not in (None, zlib.crc32(piece)):
            raise CorruptShardError("the state is damaged: an array does not match its checksum")
        arrays.append(make_array(each, piece))
        offset += each["nbytes"] + padding(each["nbytes"])
    return build(header["tree"], arrays)


def make_array(described: dict[str, Any], data: memoryview) -> Any:
    """Return the array for an entry of the header; it may keep using the memory of `data`."""
    leaf = leaf_of_kind(described["kind"])
    try:
        return leaf.make(described["dtype"], tuple(described["shape"]), data)
    except (AttributeError, ImportError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptShardError(f"an array of the state cannot be made of its bytes: {error}") from None


def offsets(header: dict[str, Any], start: int) -> list[int]:
    """Return where each array begins; the first one at `start`."""
    found = []
    for each in header["arrays"]:
        found.append(start)
        start += each["nbytes"] + padding(each["nbytes"])
    return found


def read_header(view: memoryview) -> tuple[dict[str, Any], int]:
    """Return the header and where the arrays begin; raises `CorruptShardError`."""
    if len(view) < START.size:
        raise CorruptShardError("the state is cut off before its header")
    magic, version, crc, length = START.unpack(view[: START.size])
    if magic != MAGIC:
        raise CorruptShardError("this is not a state that Holdfast wrote: its first bytes are different")
    if version > VERSION:
        raise CorruptShardError(
            f"the state was written by a newer holdfast (layout {version}; this one reads up to {VERSION})"
        )
    text = bytes(view[START.size : START.size + length]) if length <= HEADER_BYTES_MAX else b""
    if len(text) < length or zlib.crc32(text) != crc:
        raise CorruptShardError("the state is cut off or damaged: its header is not whole")
    end = START.size + length
    return _parse_header(text), end + padding(end)


def _parse_header(text: bytes) -> dict[str, Any]:
    """Read a header; its checksum proves that it is undamaged, not that its content makes sense."""
    try:
        header = json.loads(text)
        arrays = [(each["kind"], each["dtype"], each["nbytes"], *each["shape"]) for each in header["arrays"]]
        is_sane = "tree" in header
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptShardError("the header of the state is invalid") from None
    for kind, dtype, *counts in arrays:
        are_counts = all(type(count) is int and 0 <= count < 1 << 63 for count in counts)
        is_sane = is_sane and type(kind) is str and type(dtype) is str and are_counts
    if not is_sane:
        raise CorruptShardError("the header of the state describes an impossible array")
    return header  # type: ignore[no-any-return]


# -- trees -----------------------------------------------------------------------------------------------------------

#: Takes an array and how its kind is written, and returns its number in the header.
Add = Callable[[Leaf, Any], int]


def describe(value: Any, add: Add, where: str = "state") -> Any:
    """Return a tree as JSON data: plain values as they are, anything else as a list that begins with its kind."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    if type(value) is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if type(value) in (list, tuple):
        return [type(value).__name__, *[describe(item, add, f"{where}[{i}]") for i, item in enumerate(value)]]
    if isinstance(value, dict):
        return ["dict", *_describe_items(value.items(), add, where)]
    if isinstance(value, FlatSlice):
        more = [value.unit, value.dim] if (value.unit, value.dim) != (1, 0) else []
        return ["slice", describe(value.local, add, where), value.start, list(value.shape), *more]
    leaf = _leaf_for(value)
    if leaf is None:
        raise UsageError(
            f"{where} is a {type(value).__qualname__}: a state is made of dicts, lists, tuples, numbers, text, bytes "
            "and arrays; turn it into those"
        )
    return ["array", add(leaf, value)]


def _describe_items(items: Iterable[tuple[Any, Any]], add: Add, where: str) -> Iterator[list[Any]]:
    for key, item in items:
        if type(key) not in (str, int, bool, float, type(None), tuple):
            raise UsageError(f"{where} has a key of type {type(key).__qualname__}; keys are text or numbers")
        yield [describe(key, add, f"{where} key"), describe(item, add, f"{where}[{key!r}]")]


def build(value: Any, arrays: Sequence[Any]) -> Any:
    """Return the tree for a description, with these arrays in it; raises `CorruptShardError`."""
    try:
        return _build(value, arrays)
    except (IndexError, RecursionError, TypeError, ValueError) as error:
        raise CorruptShardError(f"the header of the state does not describe a tree: {error}") from None


def _build(value: Any, arrays: Sequence[Any]) -> Any:
    if not isinstance(value, list):
        return value
    kind, *rest = value
    match kind:
        case "list":
            return [_build(item, arrays) for item in rest]
        case "tuple":
            return tuple(_build(item, arrays) for item in rest)
        case "dict":
            return {_build(key, arrays): _build(item, arrays) for key, item in rest}
        case "array":
            return arrays[rest[0]]
        case "slice":
            return FlatSlice(_build(rest[0], arrays), rest[1], tuple(rest[2]), *rest[3:5])
        case "bytes":
            return base64.b64decode(rest[0])
        case "float":
            return float(rest[0])
    raise CorruptShardError(f"the state holds something of kind '{kind}', which this holdfast does not know")


def padding(length: int) -> int:
    """Return how many zeros follow a piece of this length."""
    return -length % ALIGN


# -- kinds of arrays ---------------------------------------------------------------------------------------------------


def _leaf_for(value: Any) -> Leaf | None:
    """Find how to write a value by the package of its type; imports only packages that the program uses."""
    for base in type(value).__mro__:
        package = base.__module__.partition(".")[0]
        if package == "numpy":
            return leaf_of_kind("numpy")
        if package == "torch" and hasattr(value, "untyped_storage"):
            return leaf_of_kind("torch")
        if package in ("jax", "jaxlib"):
            return leaf_of_kind("jax")
    return None


def leaf_of_kind(kind: str) -> Leaf:
    """Return how arrays of a kind are written and read; imports the package that makes them."""
    if kind == "numpy":
        return Leaf("numpy", _view_numpy, _make_numpy)
    if kind == "jax":
        return Leaf("jax", _view_numpy, _make_jax)
    if kind == "torch":
        from holdfast.torch.leaf import TORCH_LEAF

        return TORCH_LEAF
    raise CorruptShardError(f"the state holds arrays of kind '{kind}', which this holdfast does not know")


def _view_numpy(value: Any) -> tuple[str, tuple[int, ...], memoryview]:
    import numpy as np

    array = np.ascontiguousarray(value)
    if array.dtype.hasobject:
        raise UsageError("an array of Python objects cannot be written: only numbers have a layout")
    raw = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    # Kinds of numbers that come from elsewhere (bfloat16 of ml_dtypes) know themselves by name alone.
    name = array.dtype.str if array.dtype.kind != "V" or array.dtype.names else array.dtype.name
    return name, np.shape(value), memoryview(raw.data) if raw.size else memoryview(b"")


def _make_numpy(dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    import numpy as np

    try:
        kind = np.dtype(dtype)
    except TypeError:
        import ml_dtypes

        kind = np.dtype(getattr(ml_dtypes, dtype))
    if kind.hasobject:
        raise CorruptShardError("the state holds an array of Python objects, which are never read")
    return np.frombuffer(data, kind).reshape(shape)


def _make_jax(dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(_make_numpy(dtype, shape, data))
