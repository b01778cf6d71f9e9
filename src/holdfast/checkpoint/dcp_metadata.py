"""The metadata of a torch checkpoint, from inert data to torch's own dataclasses. Imports torch.

Each field is checked for its type, its range and whether it fits the others and the files, before any memory is taken
or any file is read. So a damaged or hostile checkpoint ends here with a sentence.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.checkpoint import inert
from holdfast.checkpoint.inert import Built, Named, Pairs, RefusedPickleError

METADATA = ".metadata"
#: The metadata of a checkpoint with millions of chunks stays far below this.
METADATA_BYTES_MAX = 512 * 1024 * 1024
#: Levels of a tree that a path in the metadata may have.
DEPTH_MAX = 256
DIMENSIONS_MAX = 64
TRANSFORMS_MAX = 16
#: More than any of torch's dataclasses has. A state may be shared by many objects, so reading it must cost little.
FIELDS_MAX = 32
#: A chunk that was compressed may be at most this many times larger than its bytes in the file.
COMPRESSION_MAX = 1000

_META = "torch.distributed.checkpoint.metadata"
_OLDER = "torch.distributed._shard.sharded_tensor.metadata"
_METADATA = Named(_META, "Metadata")
_INDEX = Named(_META, "MetadataIndex")
_TENSOR = Named(_META, "TensorStorageMetadata")
_BYTES = Named(_META, "BytesStorageMetadata")
_CHUNK = Named(_META, "ChunkStorageMetadata")
_PROPERTIES = (Named(_META, "TensorProperties"), Named(_OLDER, "TensorProperties"))
_STORED = Named("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_SIZE = Named("torch", "Size")
#: Named by checkpoints, and of no use to a reader.
_IGNORED = (
    Named(_META, "StorageMeta"),
    Named(_META, "_MEM_FORMAT_ENCODING"),
    Named(_OLDER, "MEM_FORMAT_ENCODING"),
    Named("torch.serialization", "_get_layout"),
    Named("torch.torch_version", "TorchVersion"),
    Named("collections", "OrderedDict"),
    *(
        Named(module, name)
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
    ),
)


def read_metadata(folder: Path) -> Any:
    """Return the metadata of a checkpoint as torch's `Metadata`; raises `RefusedPickleError` or `OSError`."""
    data = _read_bounded(folder / METADATA)
    dtypes = _dtypes()
    allowed = {_METADATA, _INDEX, _TENSOR, _BYTES, _CHUNK, *_PROPERTIES, _STORED, _SIZE, *_IGNORED, *dtypes}
    return _Converter(folder, dtypes).metadata(inert.read(data, allowed))


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > METADATA_BYTES_MAX:
            raise RefusedPickleError(f"it is not a file of at most {METADATA_BYTES_MAX} bytes")
        return file.read(METADATA_BYTES_MAX)


def _dtypes() -> dict[Named, Any]:
    import torch

    found = {name: getattr(torch, name) for name in dir(torch)}
    return {Named("torch", name): value for name, value in found.items() if isinstance(value, torch.dtype)}


class _Converter:
    """Builds torch's objects out of one inert metadata."""

    def __init__(self, folder: Path, dtypes: dict[Named, Any]) -> None:
        import torch
        import torch.distributed.checkpoint.filesystem as filesystem
        import torch.distributed.checkpoint.metadata as metadata

        self._folder = folder
        self._dtypes = dtypes
        self._types = metadata
        self._stored_type = filesystem._StorageInfo
        self._size_type = torch.Size
        self._file_bytes: dict[str, int] = {}

    def metadata(self, value: Any) -> Any:
        fields = _fields(value, _METADATA, ("state_dict_metadata",))
        stored = dict(self._storage_data(fields.get("storage_data")))
        state = {name: self._entry(name, each, stored) for name, each in _items(fields["state_dict_metadata"])}
        planner_data = fields.get("planner_data")
        return self._types.Metadata(
            state_dict_metadata=state,
            planner_data=None if planner_data is None else {name: _path(each) for name, each in _items(planner_data)},
            storage_data=stored,
            storage_meta=self._types.StorageMeta(),
        )

    # -- where the bytes lie ---------------------------------------------------------------------------------------

    def _storage_data(self, value: Any) -> Iterator[tuple[Any, Any]]:
        if type(value) is not Pairs:
            raise RefusedPickleError("it does not say where the entries are stored")
        for key, info in value.items:
            yield self._index(key), self._stored(info)

    def _index(self, value: Any) -> Any:
        fields = _fields(value, _INDEX, ("fqn",))
        offset = fields.get("offset")
        return self._types.MetadataIndex(
            _text(fields["fqn"]), None if offset is None else self._size(offset), _optional_count(fields.get("index"))
        )

    def _stored(self, value: Any) -> Any:
        fields = _fields(value, _STORED, ("relative_path", "offset", "length"))
        path, offset, length = _text(fields["relative_path"]), _count(fields["offset"]), _count(fields["length"])
        transforms = fields.get("transform_descriptors")
        if transforms is not None:
            transforms = tuple(_text(each) for each in _sequence(transforms, TRANSFORMS_MAX))
        if offset + length > self._size_of(path):
            raise RefusedPickleError(f"the file {path!r} is cut off: {offset + length} bytes are needed")
        return self._stored_type(path, offset, length, transforms)

    def _size_of(self, path: str) -> int:
        """Return the length of a file of the checkpoint; it must lie below the folder, and be a plain file."""
        if path not in self._file_bytes:
            parts = path.split("/")
            if "\0" in path or path.startswith("/") or not set(parts).isdisjoint(("", ".", "..")):
                raise RefusedPickleError(f"it names the file {path!r}, which does not lie in the checkpoint's folder")
            status = (self._folder / path).stat()
            if not stat.S_ISREG(status.st_mode):
                raise RefusedPickleError(f"{path!r} is not a regular file")
            self._file_bytes[path] = status.st_size
        return self._file_bytes[path]

    # -- entries ---------------------------------------------------------------------------------------------------

    def _entry(self, name: str, value: Any, stored: dict[Any, Any]) -> Any:
        if type(value) is Built and value.kind == _BYTES:
            if self._types.MetadataIndex(name) not in stored:
                raise RefusedPickleError(f"it does not say where {name!r} is stored")
            return self._types.BytesStorageMetadata()
        fields = _fields(value, _TENSOR, ("properties", "size", "chunks"))
        size = self._size(fields["size"])
        tensor = self._types.TensorStorageMetadata(
            self._properties(fields["properties"]), size, [self._chunk(each) for each in _sequence(fields["chunks"])]
        )
        self._check_chunks(name, tensor, stored)
        return tensor

    def _check_chunks(self, name: str, tensor: Any, stored: dict[Any, Any]) -> None:
        """Check that the chunks are distinct, lie within the tensor, cover it in number, and are as long as they say.

        Otherwise a few bytes could claim to be a tensor that fills the memory.
        """
        seen: set[tuple[int, ...]] = set()
        elements = 0
        for chunk in tensor.chunks:
            info = stored.get(self._types.MetadataIndex(name, chunk.offsets))
            ends = [offset + size for offset, size in zip(chunk.offsets, chunk.sizes, strict=False)]
            fits = len(chunk.offsets) == len(chunk.sizes) == len(tensor.size)
            if not fits or any(end > size for end, size in zip(ends, tensor.size, strict=True)):
                raise RefusedPickleError(f"a part of the tensor {name!r} does not lie within it")
            count = math.prod(chunk.sizes)
            if info is None or (count and tuple(chunk.offsets) in seen):
                raise RefusedPickleError(f"a part of the tensor {name!r} is stored twice or not at all")
            factor = COMPRESSION_MAX if info.transform_descriptors else 1
            if count * tensor.properties.dtype.itemsize > info.length * factor:
                raise RefusedPickleError(f"a part of the tensor {name!r} is longer than what is stored of it")
            seen.add(tuple(chunk.offsets))
            elements += count
        if elements != math.prod(tensor.size):
            raise RefusedPickleError(f"the parts of the tensor {name!r} do not make up the whole")

    def _chunk(self, value: Any) -> Any:
        fields = _fields(value, _CHUNK, ("offsets", "sizes"))
        return self._types.ChunkStorageMetadata(self._size(fields["offsets"]), self._size(fields["sizes"]))

    def _properties(self, value: Any) -> Any:
        """Read a tensor's type; the other properties no longer mean anything to torch."""
        if type(value) is not Built or value.kind not in _PROPERTIES or type(value.state) is not tuple:
            raise RefusedPickleError("a tensor has no properties")
        dtype = self._dtypes.get(value.state[0]) if value.state and type(value.state[0]) is Named else None
        if dtype is None:
            raise RefusedPickleError("a tensor has a type that this torch does not know")
        return self._types.TensorProperties(dtype=dtype)

    def _size(self, value: Any) -> Any:
        if type(value) is not Built or value.kind != _SIZE or len(value.arguments) != 1:
            raise RefusedPickleError("a size is missing")
        return self._size_type([_count(each) for each in _sequence(value.arguments[0], DIMENSIONS_MAX)])


# -- plain values ------------------------------------------------------------------------------------------------------


def _fields(value: Any, kind: Named, needed: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a dataclass of this kind."""
    if type(value) is not Built or value.kind != kind or type(value.state) is not Pairs:
        raise RefusedPickleError(f"a {kind.name} is missing")
    if len(value.state.items) > FIELDS_MAX:
        raise RefusedPickleError(f"a {kind.name} has over {FIELDS_MAX} fields")
    fields = dict(_items(value.state))
    for name in needed:
        if name not in fields:
            raise RefusedPickleError(f"a {kind.name} has no {name}")
    return fields


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) is not Pairs:
        raise RefusedPickleError("a dict is missing")
    seen: set[str] = set()
    for key, each in value.items:
        if _text(key) in seen:
            raise RefusedPickleError(f"the name {key!r} occurs twice")
        seen.add(key)
        yield key, each


def _path(value: Any) -> tuple[str | int, ...]:
    """Read where an entry stands in the tree."""
    parts = _sequence(value, DEPTH_MAX)
    if not parts:
        raise RefusedPickleError("the place of an entry is empty")
    return tuple(each if type(each) is str else _count(each) for each in parts)


def _sequence(value: Any, length_max: int | None = None) -> Any:
    if type(value) is not tuple and type(value) is not list:
        raise RefusedPickleError("a list is missing")
    if length_max is not None and len(value) > length_max:
        raise RefusedPickleError(f"a list has over {length_max} items")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise RefusedPickleError("a name is not text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise RefusedPickleError("a size or an offset is not a count")
    return value


def _optional_count(value: Any) -> int | None:
    return None if value is None else _count(value)
