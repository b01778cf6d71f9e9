"""Names of others that lead to Holdfast, for programs written against them. Tables and thin adapters; no logic.

`install()` is for programs that ask for it: from then on `import torchx` is answered by Holdfast even where TorchX is
installed. `torchx_where_missing()` is what the command line does before it loads components and plugins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

from holdfast.compat.finder import AliasFinder, drop
from holdfast.compat.names import MODULES, ROOTS

__all__ = ["install", "torchx_where_missing"]


def install() -> Callable[[], None]:
    """Let `torchx` and what is below it lead to Holdfast from now on; returns the function that takes it back.

    What was imported under these names before is set aside; whoever holds it keeps it.
    """
    if any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        return lambda: None
    finder = AliasFinder(ROOTS, MODULES)
    set_aside = drop(finder)
    sys.meta_path.insert(0, finder)

    def take_back() -> None:
        sys.meta_path.remove(finder)
        drop(finder)
        sys.modules.update(set_aside)

    return take_back


def torchx_where_missing() -> Callable[[], None]:
    """Let `torchx` lead to Holdfast unless TorchX is installed; returns the function that takes it back."""
    return (lambda: None) if _is_installed("torchx") else install()


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return True
    spec = find_spec(package)
    # A folder that happens to have the name is a namespace package, which has no file of its own.
    return spec is not None and spec.origin is not None
