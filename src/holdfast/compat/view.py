"""A module that shows the names of several of ours, for a foreign name that covers all of them.

Reading goes to the first module that has the name, and writing to every one that has it, so that a name patched through
the view is patched where it is used.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from holdfast.compat.names import View


class ViewModule(ModuleType):
    """A module without names of its own but those of its children."""

    __slots__ = ("_children", "_covered", "_loaded", "_what")

    _what: View
    _children: frozenset[str]
    _loaded: tuple[ModuleType, ...] | None
    #: What a name was before it was set, for each time that it was.
    _covered: dict[str, list[list[tuple[ModuleType, str, Any]]]]

    def __init__(self, name: str, what: View, children: frozenset[str]) -> None:
        super().__init__(name, what.doc or None)
        for slot, value in (("_what", what), ("_children", children), ("_loaded", None), ("_covered", {})):
            super().__setattr__(slot, value)

    @property
    def _homes(self) -> tuple[ModuleType, ...]:
        """The modules behind this one, imported when they are first needed."""
        if self._loaded is None:
            homes = tuple(import_module(name) for name in self._what.modules)
            super().__setattr__("_loaded", homes)
            if homes:
                super().__setattr__("__file__", homes[0].__file__)
                super().__setattr__("__doc__", self._what.doc or homes[0].__doc__)
        return self._loaded or ()

    def __getattr__(self, name: str) -> Any:
        if name in self._what.names:
            module, _, theirs = self._what.names[name].partition(":")
            return getattr(import_module(module), theirs or name)
        if name in self._children:
            return import_module(f"{self.__name__}.{name}")
        if name == "__all__":
            return [each for each in dir(self) if not each.startswith("_")]
        if not name.startswith("__"):
            for home in self._homes:
                if hasattr(home, name):
                    return getattr(home, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or name in self._children:
            super().__setattr__(name, value)
            return
        places = self._places(name)
        self._covered.setdefault(name, []).append(
            [(home, theirs, getattr(home, theirs)) for home, theirs in places if hasattr(home, theirs)]
        )
        for home, theirs in places:
            setattr(home, theirs, value)

    def __delattr__(self, name: str) -> None:
        """Uncover what was there before the name was set, as `unittest.mock.patch` expects of names it sees through."""
        if name in vars(self):
            super().__delattr__(name)
            return
        if not hasattr(self, name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        before = self._covered.get(name)
        for home, theirs in self._places(name):
            delattr(home, theirs)
        for home, theirs, value in before.pop() if before else ():
            setattr(home, theirs, value)

    def _places(self, name: str) -> list[tuple[ModuleType, str]]:
        """Where a name lives: a renamed one in one place, another one in all modules that have it."""
        if name in self._what.names:
            module, _, theirs = self._what.names[name].partition(":")
            return [(import_module(module), theirs or name)]
        return [(home, name) for home in self._homes if hasattr(home, name)] or [(h, name) for h in self._homes[:1]]

    def __dir__(self) -> list[str]:
        names = {name for home in self._homes for name in dir(home) if not name.startswith("__")}
        return sorted(names | set(self._what.names) | set(vars(self)))
