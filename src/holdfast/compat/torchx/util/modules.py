"""Modules and their attributes by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from types import ModuleType


def load_module(path: str) -> ModuleType | Callable[..., object] | None:
    """Return what `module` or `module:attribute` names; None if it cannot be had."""
    name, _, attribute = path.partition(":")
    try:
        found: ModuleType | Callable[..., object] = reduce(getattr, filter(None, [attribute]), import_module(name))
    except Exception:  # noqa: BLE001 - another package's module may fail in any way while it is imported
        return None
    return found
