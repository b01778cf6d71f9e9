"""Packages whose names are imported when they are first used.

    if TYPE_CHECKING:
        from holdfast.store.api import Store as Store
        from holdfast.store.prefix import PrefixStore as PrefixStore
    else:
        __getattr__, __dir__, __all__ = attach(__name__, api="Store", prefix="PrefixStore")

Type checkers and editors read the first branch, Python runs the second; tests/test_lazy.py holds them to each other. A
name that is also that of a module of the package must be imported at once, above: importing the module would bind it.
"""

# `typing` takes longer to import than the rest of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def attach(
    package: str, /, *modules: str, **names: str
) -> "tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]":
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    It offers these modules, and from others these names: `attach("p", "a", b="f g")` gives `p.a`, `p.f` and `p.g`.
    """
    homes = {name: module for module, line in names.items() for name in line.split()}
    public = sorted({*homes, *modules})

    def load(name: str) -> "Any":
        from importlib import import_module

        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        return vars(import_module(package)).setdefault(name, value)

    return load, lambda: public, public
