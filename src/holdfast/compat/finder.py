"""The import hook behind foreign names: an alias is the same module, not a copy.

Python loads a module once for every name it is asked for, so a second name would give second classes, and patching one
would not patch the other. The alias finder comes first, so that no other one finds our files under a foreign name, and
its loader returns the module that is already there under its own name.

If torch is not installed, `torch.distributed.elastic` can be imported and `import torch` fails as it should: see
`WithoutParents`.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
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
    """Finds the names of a table and everything below them."""

    def __init__(self, modules: Table) -> None:
        self.modules = modules

    def owns(self, name: str) -> bool:
        """Whether this name is listed or below a listed one."""
        return self._nearest(name) is not None

    def target(self, name: str) -> str | View | None:
        """The module behind a name: its own entry, or the module below that of its nearest listed ancestor."""
        known = self._nearest(name)
        if known is None or known == name:
            return self.modules.get(name)
        above = self.modules[known]
        return None if isinstance(above, View) else above + name[len(known) :]

    def packages(self) -> list[ViewModule]:
        """Make the listed packages, and the modules whose parents belong to others, without loading anything."""
        made = []
        for name, behind in self.modules.items():
            children = frozenset(child.rpartition(".")[2] for child in self.children(name))
            if children or not self.owns(name.rpartition(".")[0]):
                what = behind if isinstance(behind, View) else View((behind,))
                module = ViewModule(name, what, children)
                module.__spec__ = spec = self._spec_of_view(name, what)
                if spec.submodule_search_locations is not None:
                    module.__path__ = spec.submodule_search_locations
                made.append(module)
        return made

    def children(self, fullname: str) -> list[str]:
        """The listed names right below another."""
        return [name for name in self.modules if name.rpartition(".")[0] == fullname]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say how a name is loaded, or None if it is not ours or leads nowhere."""
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


class WithoutParents:
    """Lets the names of a finder be imported where the packages above them are not installed, and stay so.

    Python imports the parents of a module first. So all packages of the finder are put into `sys.modules`, where
    `from torch.distributed.elastic.agent import server` finds them. `import torch.distributed.elastic as elastic` asks
    for the topmost package as well, and gets one from `__import__` that no other import finds.
    """

    def __init__(self, finder: AliasFinder) -> None:
        self._finder = finder
        self._import = builtins.__import__
        self._on = True
        for module in finder.packages():
            sys.modules[module.__name__] = module
        builtins.__import__ = self._answer

    def _answer(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - as Python names it
        locals: Mapping[str, object] | None = None,  # noqa: A002 - as Python names it
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or fromlist or not self._on or not self._finder.owns(name):
            return self._import(name, globals, locals, fromlist or (), level)
        import_module(name)
        return _Parent(name.partition(".")[0])

    def take_back(self) -> None:
        """Undo it; another program's `__import__` that was put over this one stays."""
        self._on = False
        if builtins.__import__ == self._answer:
            builtins.__import__ = self._import


class _Parent(ModuleType):
    """Stands for a package that is not installed, in the import statement that asked for something below it."""

    def __getattr__(self, name: str) -> Any:
        below = f"{self.__name__}.{name}"
        if below in sys.modules:
            return sys.modules[below]
        if any(each.startswith(f"{below}.") for each in sys.modules):
            return _Parent(below)
        raise AttributeError(f"{self.__name__!r} is not installed, so it has no {name!r}; Holdfast answers for others")


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
        _ = module._homes  # a module that cannot be imported says so now


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
