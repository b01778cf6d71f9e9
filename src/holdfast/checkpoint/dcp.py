"""Torch Distributed Checkpoint's format: a folder that torch's own tools read and write. Imports torch.

Nothing in a checkpoint is run. Its metadata is a pickle, which is read as inert data (`holdfast.checkpoint.inert`) and
checked field by field (`holdfast.checkpoint.dcp_metadata`). Its entries are read by torch with `weights_only`.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint.dcp_metadata import METADATA, read_metadata
from holdfast.checkpoint.inert import RefusedPickleError
from holdfast.checkpoint.layout import FlatSlice
from holdfast.errors import CorruptShardError, UsageError

#: Before this release, `weights_only` could be made to run code (CVE-2025-32434).
TORCH_MIN = (2, 6)
#: Places in lists that no entry has. Where many are missing, the checkpoint is not what it says.
HOLES_MAX = 100_000


def write_dcp(tree: Mapping[str, Any], folder: str | os.PathLike[str]) -> None:
    """Write a tree as a checkpoint of torch's; its arrays become tensors. Raises `UsageError` for what has no place."""
    dcp = _dcp()
    if not isinstance(tree, Mapping) or not all(isinstance(key, str) for key in tree):
        raise UsageError("torch's checkpoints are dicts with names as keys: wrap the state in one")
    dcp.save(_to_tensors(dict(tree), "state"), checkpoint_id=os.fspath(folder), no_dist=True)


def read_dcp(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a whole checkpoint of torch's, written by any number of workers; tensors are on the CPU.

    Numbers that were keys of a dict come back as text, because torch writes them so. Raises `CorruptShardError` if it
    is no checkpoint or holds more than plain data.
    """
    dcp = _dcp()
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < TORCH_MIN:
        raise UsageError(f"torch {torch.__version__} cannot read checkpoints safely: install torch 2.6 or newer")
    path = Path(folder)
    metadata = _read_metadata(path)
    flat: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    try:
        for name, entry in metadata.state_dict_metadata.items():
            is_tensor = isinstance(entry, dcp.TensorStorageMetadata)
            flat[name] = torch.empty(entry.size, dtype=entry.properties.dtype) if is_tensor else None
        dcp.load(
            flat,
            storage_reader=_safe_reader(dcp, path, metadata),
            planner=_safe_planner(dcp, plain),
            no_dist=True,
        )
    # Torch reads the files; damaged ones make it raise almost anything, at last wrapped in an error of its own.
    except (Exception, dcp.CheckpointException) as error:
        _raise_interruption(error)
        raise CorruptShardError(f"{path} cannot be read: {error}") from error
    return _unflatten({**flat, **plain}, metadata.planner_data or {})


def _raise_interruption(error: BaseException) -> None:
    """Raise Ctrl-C again, which torch wraps like any other error."""
    for inner, _ in getattr(error, "failures", {}).values():
        if isinstance(inner, BaseException) and not isinstance(inner, Exception):
            raise inner


def _dcp() -> Any:
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError:
        raise UsageError("torch's checkpoints need torch: run pip install 'holdfast[torch]'") from None
    return dcp


def _to_tensors(value: Any, where: str) -> Any:
    import torch

    if isinstance(value, FlatSlice):
        local = _to_tensors(value.local, where)
        if not isinstance(local, torch.Tensor) or value.start or local.numel() != math.prod(value.shape):
            raise UsageError(f"{where} is a part of an array: restore the whole state with shard=(0, 1) first")
        return local.reshape(value.shape).movedim(0, value.dim) if value.shape else local
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
    items_max = HOLES_MAX + sum(len(paths.get(name, ())) for name in flat)
    for name, value in flat.items():
        path = paths.get(name, (name,))
        at: Any = tree
        for key, following in zip(path, (*path[1:], None), strict=True):
            fresh = value if following is None else [] if isinstance(following, int) else {}
            if isinstance(at, list) and isinstance(key, int):
                missing = max(0, key + 1 - len(at))
                items_max -= missing
                if items_max < 0:
                    raise CorruptShardError(
                        f"the checkpoint is not whole: most items of the lists around {name!r} are missing"
                    )
                at.extend([None] * missing)
                if at[key] is None:
                    at[key] = fresh
                at = at[key]
            elif isinstance(at, dict):
                at = at.setdefault(key, fresh)
            else:
                raise CorruptShardError(f"the checkpoint contradicts itself about the place of {name!r}")
    return tree


# -- reading without running what was read -----------------------------------------------------------------------------


def _read_metadata(path: Path) -> Any:
    try:
        return read_metadata(path)
    except FileNotFoundError as error:
        if (path / METADATA).exists():
            raise CorruptShardError(f"{path} is cut off: it has no file {error.filename}") from None
        raise CorruptShardError(f"{path} is not a checkpoint of torch's: it has no {METADATA}") from None
    except (RefusedPickleError, OSError) as error:
        raise CorruptShardError(f"{path / METADATA} cannot be read: {error}") from None


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
            plain[read_item.dest_index.fqn] = torch.load(value, map_location="cpu", weights_only=True)

    return Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
