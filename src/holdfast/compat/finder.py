"""The import hook behind the names of others: an alias is the very module it stands for, not a copy.

Python loads a module once for every name it is asked for, so a second name would give second classes, and patching one
would not patch the other. This finder comes first, so that no other one finds our files under a foreign name, and its
loader returns the module that is already there under its own name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # the real one adds nothing but its import, which costs a short command a tenth of its time


class AliasFinder:
    """Answers for everything below some roots, out of a table of names."""

    def __init__(self, roots: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]) -> None:
        self._roots = roots
        self._modules = modules

    def owns(self, name: str) -> bool:
        """Whether this name is a root or below one."""
        return name.partition(".")[0] in self._roots

    def target(self, name: str) -> str | None:
        """The module of ours that stands behind a name: its own, or that of its nearest listed ancestor."""
        known, rest = name, ""
        while known:
            if known in self._modules:
                return self._modules[known] + rest
            known, _, last = known.rpartition(".")
            rest = f".{last}{rest}"
        return None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say how a name is loaded, or None where it is not ours or leads nowhere."""
        del path, target
        if fullname in self._roots:
            return ModuleSpec(fullname, _RootLoader(self._roots[fullname]), origin="holdfast", is_package=True)
        ours = self.target(fullname) if self.owns(fullname) else None
        found = _spec_of(ours) if ours is not None else None
        if ours is None or found is None:
            return None
        is_package = found.submodule_search_locations is not None
        loader = _AliasLoader(ours, self._moved_below(fullname))
        return ModuleSpec(fullname, loader, origin=found.origin, is_package=is_package)

    def _moved_below(self, fullname: str) -> list[str]:
        """The listed children of a module that are no children of the module behind it."""
        ours = self.target(fullname)
        return [
            name
            for name, other in self._modules.items()
            if (parts := name.rpartition("."))[0] == fullname and other != f"{ours}.{parts[2]}"
        ]


class _RootLoader(Loader):
    """Makes an empty package with some attributes."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self._attributes = attributes

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._attributes)


class _AliasLoader(Loader):
    """Returns the module that stands behind a name."""

    def __init__(self, ours: str, moved: Sequence[str]) -> None:
        self._ours = ours
        self._moved = moved
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        module = import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just written the alias over the module's own spec, by which it is reloaded.
        module.__spec__ = self._spec
        # `from torchx.specs import api` looks for an attribute, then for a child of the module's own name.
        for name in self._moved:
            import_module(name)


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise  # a parent of it is there but needs something that is not installed
        return None


def drop(finder: AliasFinder) -> dict[str, ModuleType]:
    """Take everything that the finder owns out of the loaded modules, and return it."""
    owned = [name for name in sys.modules if finder.owns(name)]
    return {name: sys.modules.pop(name) for name in owned}
