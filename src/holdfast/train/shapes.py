"""Gradients as users bring them, one array or several in a list or a dict, and what they look like as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def arrays_of(gradient: Any) -> list[Any]:
    """Return the arrays in a fixed order."""
    if isinstance(gradient, Mapping):
        return [gradient[key] for key in sorted(gradient)]
    return list(gradient) if isinstance(gradient, list | tuple) else [gradient]


def describe(gradient: Any) -> dict[str, Any]:
    """Say what a gradient looks like, without its numbers."""
    return {
        "keys": sorted(gradient) if isinstance(gradient, Mapping) else None,
        "kind": type(gradient).__name__ if isinstance(gradient, list | tuple) else None,
        "arrays": [(str(array.dtype), list(array.shape)) for array in arrays_of(gradient)],
    }


def blanks(shape: Mapping[str, Any]) -> list[Any]:
    """Return arrays that look as described and weigh nothing."""
    import numpy as np

    return [np.broadcast_to(np.zeros(1, dtype), size) for dtype, size in shape["arrays"]]


def rebuild(shape: Mapping[str, Any], arrays: list[Any]) -> Any:
    """Put arrays together to what was described."""
    if shape["keys"] is not None:
        return dict(zip(shape["keys"], arrays, strict=True))
    return {"list": list, "tuple": tuple}[shape["kind"]](arrays) if shape["kind"] else arrays[0]
