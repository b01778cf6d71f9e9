"""The import hook behind the names of others: an alias is the very module it stands for, not a copy.

Python loads a module once for every name it is asked for, so a second name would give second classes, and patching one
would not patch the other. The alias finder comes first, so that no other one finds our files under a foreign name, and
its loader returns the module that is already there under its own name. Behind it, last of all finders, stands one that
makes empty parents: `torch.distributed.elastic` answers where there is no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.compat.names import Table, View
from holdfast.compat.view import ViewModule

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # the real one adds nothing but its import, which costs a short command a tenth of its time

#: Begins the search path of a package that has no folder.
PATH_PREFIX = "holdfast-names:"


class AliasFinder:
    """Answers for the names of a table and for everything below them."""

    def __init__(self, modules: Table) -> None:
        self.modules = modules

    def owns(self, name: str) -> bool:
        """Whether this name is listed or below a listed one."""
        return self._nearest(name) is not None

    def target(self, name: str) -> str | View | None:
        """What stands behind a name: its own entry, or what is below that of its nearest listed ancestor."""
        known = self._nearest(name)
        if known is None or known == name:
            return self.modules.get(name)
        above = self.modules[known]
        return None if isinstance(above, View) else above + name[len(known) :]

    def parents(self) -> set[str]:
        """The names that must be there for the listed ones to be imported, and belong to others."""
        above = {name[:at] for name in self.modules for at, letter in enumerate(name) if letter == "."}
        return {name for name in above if not self.owns(name)}

    def children(self, fullname: str) -> list[str]:
        """The listed names right below another."""
        return [name for name in self.modules if name.rpartition(".")[0] == fullname]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say how a name is loaded, or None where it is not ours or leads nowhere."""
        del path, target
        behind = self.target(fullname)
        if isinstance(behind, View):
            return self._spec_of_view(fullname, behind)
        found = _spec_of(behind) if behind is not None else None
        if behind is None or found is None:
            return None
        is_package = found.submodule_search_locations is not None
        moved = [name for name in self.children(fullname) if self.modules[name] != behind + name[len(fullname) :]]
        return ModuleSpec(fullname, _AliasLoader(behind, moved), origin=found.origin, is_package=is_package)

    def _spec_of_view(self, fullname: str, what: View) -> ModuleSpec:
        children = frozenset(name.rpartition(".")[2] for name in self.children(fullname))
        spec = ModuleSpec(fullname, _ViewLoader(what, children), origin="holdfast", is_package=bool(children))
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(PATH_PREFIX + fullname)
        return spec

    def hook(self, path: str) -> _Listing:
        """Let `pkgutil` see what is below a package that has no folder."""
        name = path.removeprefix(PATH_PREFIX)
        if name == path or not self.owns(name):
            raise ImportError(path)
        return _Listing([(child, bool(self.children(child))) for child in self.children(name)])

    def _nearest(self, name: str) -> str | None:
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name or None


class ParentFinder:
    """Makes empty packages for parents that nobody else has."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say how a parent is made; the import system has asked all others before."""
        del path, target
        return ModuleSpec(fullname, _ParentLoader(), is_package=True) if fullname in self._names else None

    def drop(self) -> None:
        """Forget the parents that were made."""
        for name in self._names & sys.modules.keys():
            if isinstance(getattr(sys.modules[name].__spec__, "loader", None), _ParentLoader):
                del sys.modules[name]


class _ParentLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def missing(attribute: str) -> Any:
            raise AttributeError(f"{name!r} is not installed, so it has no {attribute!r}; Holdfast answers for others")

        module.__doc__ = f"Stands in for {name}, which is not installed, so that names below it can be imported."
        module.__getattr__ = missing  # type: ignore[method-assign]


class _Listing:
    """What `pkgutil` asks of a place where modules are."""

    def __init__(self, names: list[tuple[str, bool]]) -> None:
        self._names = names

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Name each module, and say whether it is a package."""
        for name, is_package in self._names:
            yield prefix + name.rpartition(".")[2], is_package

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> None:
        """Find nothing: the alias finder has been asked before."""


class _ViewLoader(Loader):
    """Makes a view."""

    def __init__(self, what: View, children: frozenset[str]) -> None:
        self._what = what
        self._children = children

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ViewModule(spec.name, self._what, self._children)

    def exec_module(self, module: ModuleType) -> None:
        assert isinstance(module, ViewModule)
        module._load()


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

    def get_code(self, fullname: str) -> Any:
        """The code of the module, for `python -m`."""
        del fullname
        found = find_spec(self._ours)
        assert found is not None
        loader: Any = found.loader
        return loader.get_code(self._ours)


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise  # a parent of it is there but needs something that is not installed
        return None


class SetAside:
    """What was loaded under the names of a finder: taken away now, put back when asked."""

    def __init__(self, finder: AliasFinder) -> None:
        self._finder = finder
        self._modules, self._attributes = _take(finder)

    def lead_anew(self) -> None:
        """Let attributes of parents that belong to others (`torch.distributed.elastic`) lead to ours at once."""
        for parent, name in self._attributes:
            import_module(f"{parent.__name__}.{name}")

    def put_back(self) -> None:
        """Undo it; what has been loaded since goes."""
        _take(self._finder)
        sys.modules.update(self._modules)
        for (parent, name), value in self._attributes.items():
            setattr(parent, name, value)


def _take(finder: AliasFinder) -> tuple[dict[str, ModuleType], dict[tuple[ModuleType, str], Any]]:
    owned = [name for name in sys.modules if finder.owns(name)]
    attributes: dict[tuple[ModuleType, str], Any] = {}
    for name in owned:
        above, _, last = name.rpartition(".")
        parent = sys.modules.get(above)
        if parent is not None and not finder.owns(above) and last in vars(parent):
            attributes[parent, last] = vars(parent)[last]
            delattr(parent, last)
    return {name: sys.modules.pop(name) for name in owned}, attributes
