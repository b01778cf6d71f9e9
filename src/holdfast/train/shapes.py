"""Gradients as users pass them, one array or a tree of them, and their shape as plain data.

A tree is made of dicts, lists and tuples, one inside the other as often as need be; a plain number is an array, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def arrays_of(gradient: Any) -> list[Any]:
    """Return the arrays in a fixed order."""
    if isinstance(gradient, Mapping):
        return [array for key in sorted(gradient) for array in arrays_of(gradient[key])]
    if isinstance(gradient, list | tuple):
        return [array for item in gradient for array in arrays_of(item)]
    return [gradient]


def describe(gradient: Any) -> dict[str, Any]:
    """Describe the shape of a gradient, without its numbers."""
    import numpy as np

    arrays = [(str(array.dtype), list(array.shape)) for array in map(np.asarray, arrays_of(gradient))]
    return {"tree": _outline(gradient), "arrays": arrays}


def blanks(shape: Mapping[str, Any]) -> list[Any]:
    """Return arrays of the described shape that use no memory."""
    import numpy as np

    return [np.broadcast_to(np.zeros((), dtype), size) for dtype, size in shape["arrays"]]


def rebuild(shape: Mapping[str, Any], arrays: list[Any]) -> Any:
    """Put arrays together into the described shape."""
    return _filled(shape["tree"], iter(arrays))


def _outline(gradient: Any) -> Any:
    """A list that begins with its kind; None stands for an array."""
    if isinstance(gradient, Mapping):
        return ["dict", *([key, _outline(gradient[key])] for key in sorted(gradient))]
    if isinstance(gradient, list | tuple):
        return ["tuple" if isinstance(gradient, tuple) else "list", *map(_outline, gradient)]
    return None


def _filled(outline: Any, arrays: Iterator[Any]) -> Any:
    if outline is None:
        return next(arrays)
    kind, *items = outline
    if kind == "dict":
        return {key: _filled(item, arrays) for key, item in items}
    found = [_filled(item, arrays) for item in items]
    return tuple(found) if kind == "tuple" else found
