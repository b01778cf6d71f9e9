"""Torch Distributed Checkpoint's format: a folder that torch's own tools read and write. Imports torch.

Its metadata is a pickle, and so are its entries that are no tensors. Both are read here with all doors but the needed
ones shut: the metadata may name only what torch's checkpoints are made of, and entries are read with `weights_only`.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import Torn
from holdfast.checkpoint.layout import FlatSlice
from holdfast.errors import UsageError

_METADATA = ".metadata"
#: What the metadata of a checkpoint is made of; anything else in it is refused.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": None,
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "device"},
    "torch.torch_version": {"TorchVersion"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath", "Path"},
    "pathlib._local": {"PosixPath", "PurePosixPath", "Path"},
}


def write_dcp(tree: Mapping[str, Any], folder: str | os.PathLike[str]) -> None:
    """Write a tree as a checkpoint of torch's; its arrays become tensors. Raises `UsageError` for what has no place."""
    dcp = _dcp()
    if not isinstance(tree, Mapping) or not all(isinstance(key, str) for key in tree):
        raise UsageError("torch's checkpoints are dicts with names as keys: wrap the state in one")
    dcp.save(_to_tensors(dict(tree), "state"), checkpoint_id=os.fspath(folder), no_dist=True)


def read_dcp(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a whole checkpoint of torch's, whoever wrote it and by how many workers; tensors are on the CPU.

    Numbers that were keys of a dict come back as text: torch writes them so. Raises `Torn` where it is not a
    checkpoint, or holds what is no plain data.
    """
    dcp = _dcp()
    import torch

    path = Path(folder)
    metadata = _read_metadata(path)
    flat: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        is_tensor = isinstance(entry, dcp.TensorStorageMetadata)
        flat[name] = torch.empty(entry.size, dtype=entry.properties.dtype) if is_tensor else None
    reader = _safe_reader(dcp, path, metadata)
    plain: dict[str, Any] = {}
    try:
        dcp.load(flat, storage_reader=reader, planner=_safe_planner(dcp, plain), no_dist=True)
    except (pickle.UnpicklingError, OSError, KeyError, RuntimeError, dcp.CheckpointException) as error:
        raise Torn(f"{path} cannot be read: {error}") from None
    return _unflatten({**flat, **plain}, metadata.planner_data or {})


def _dcp() -> Any:
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError:
        raise UsageError("torch's checkpoints need torch: run pip install 'holdfast[torch]'") from None
    return dcp


def _to_tensors(value: Any, where: str) -> Any:
    import torch

    if isinstance(value, FlatSlice):
        raise UsageError(f"{where} is a part of an array: restore the whole state with shard=(0, 1) first")
    if isinstance(value, dict):
        return {key: _to_tensors(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_tensors(item, f"{where}[{index}]") for index, item in enumerate(value))
    if type(value).__module__.partition(".")[0] == "numpy":
        import numpy as np

        return torch.from_numpy(np.array(value))
    return value


def _unflatten(flat: dict[str, Any], paths: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Put the entries back to where they were in the tree; torch notes the path of each under its flat name."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        path = paths.get(name, (name,))
        at: Any = tree
        for key, following in itertools.pairwise(path):
            at = _step_into(at, key, [] if isinstance(following, int) else {})
        _step_into(at, path[-1], value)
    return tree


def _step_into(at: Any, key: Any, fresh: Any) -> Any:
    if isinstance(at, list):
        at.extend([None] * (key + 1 - len(at)))
        if at[key] is None:
            at[key] = fresh
        return at[key]
    return at.setdefault(key, fresh)


# -- reading without running what was read -----------------------------------------------------------------------------


class _MetadataUnpickler(pickle.Unpickler):
    """Reads the metadata and refuses to name anything that does not belong there."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get(module, ())
        is_dtype = module == "torch" and name in _dtypes()
        if not is_dtype and allowed is not None and name not in allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


def _dtypes() -> set[str]:
    import torch

    kinds = (torch.dtype, torch.layout, torch.memory_format)
    return {name for name in dir(torch) if isinstance(getattr(torch, name), kinds)}


def _read_metadata(path: Path) -> Any:
    try:
        data = (path / _METADATA).read_bytes()
    except OSError:
        raise Torn(f"{path} is no checkpoint of torch's: it has no {_METADATA}") from None
    try:
        return _MetadataUnpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError) as error:
        raise Torn(f"{path / _METADATA} cannot be read: {error}") from None


def _safe_reader(dcp: Any, path: Path, metadata: Any) -> Any:
    class Reader(dcp.FileSystemReader):  # type: ignore[misc]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            del args, kwargs
            if metadata.storage_meta is None:
                metadata.storage_meta = self.storage_meta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    return Reader(os.fspath(path))


def _safe_planner(dcp: Any, plain: dict[str, Any]) -> Any:
    """Return a planner that puts entries which are no tensors into `plain`."""
    import torch

    class Planner(dcp.DefaultLoadPlanner):  # type: ignore[misc]
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            plain[read_item.dest_index.fqn] = torch.load(value, weights_only=True)

    return Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
