"""Names of torch.distributed.elastic, torchx and torchelastic that mean Holdfast. Tables and thin adapters; no logic.

After `install()`, `import torch.distributed.elastic` and `import torchx` give Holdfast's modules even if the real ones
are installed; the rest of torch does not change. `python -m holdfast.compat script.py` does this for a program that
does not call it, `holdfast launch --compat` for its workers. The command line calls `torchx_where_missing()` before it
loads components and plugins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

from holdfast.compat.finder import AliasFinder, SetAside, WithoutParents
from holdfast.compat.names import FAMILIES, OF_OTHERS, table
from holdfast.errors import UsageError
from holdfast.workers.bootstrap import COMPAT_VARIABLE as VARIABLE

__all__ = ["VARIABLE", "install", "install_from_environment", "module_behind", "torchx_where_missing"]


def install(*families: str) -> Callable[[], None]:
    """Make the names of these families mean Holdfast's modules from now on; return the function that undoes it.

    The families are `torch` (`torch.distributed.elastic`, `.run`, `.launch`, `.launcher`) and `torchx`; without an
    argument, both. `torchelastic` needs no call. Modules that were imported under these names before are
    set aside; code that holds them keeps them.

    If torch is not installed, `import torch` still raises `ModuleNotFoundError`.
    """
    for family in families:
        if family not in FAMILIES:
            raise UsageError(f"'{family}' is not a family of names: choose among {', '.join(FAMILIES)}")
    undo = [_install_one(family) for family in families or OF_OTHERS]

    def take_back() -> None:
        for each in reversed(undo):
            each()

    return take_back


def _install_one(family: str) -> Callable[[], None]:
    modules = table(family)
    if any(isinstance(each, AliasFinder) and each.modules is modules for each in sys.meta_path):
        return lambda: None
    finder = AliasFinder(modules)
    set_aside = SetAside(finder)
    sys.meta_path.insert(0, finder)
    sys.path_hooks.append(finder.hook)
    set_aside.lead_anew()
    alone = WithoutParents(finder) if family == "torch" and not _is_installed("torch") else None

    def take_back() -> None:
        if alone is not None:
            alone.take_back()
        sys.meta_path.remove(finder)
        sys.path_hooks.remove(finder.hook)
        set_aside.put_back()

    return take_back


def install_from_environment(value: str) -> None:
    """Install the families that `HOLDFAST_COMPAT` names, or `all`."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    if names:
        install(*(() if "all" in names else names))


def torchx_where_missing() -> Callable[[], None]:
    """Make `torchx` mean Holdfast's modules unless TorchX is installed; return the function that undoes it."""
    return (lambda: None) if _is_installed("torchx") else install("torchx")


def module_behind(name: str) -> str:
    """Return the name of our module behind a foreign name, or the name itself."""
    for family in OF_OTHERS:
        found = AliasFinder(table(family)).target(name)
        if isinstance(found, str):
            return found
    return name


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return True
    spec = find_spec(package)
    # A folder that happens to have the name is a namespace package, which has no file of its own.
    return spec is not None and spec.origin is not None
